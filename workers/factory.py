"""Builds a measurer from its configuration; the one door for a composition root."""

from tuner.ports import Measurer
from workers.config import MeasurerConfig, parse_measurer
from workers.script import BadScript

__all__ = ["BadScript", "MeasurerConfig", "create_measurer", "parse_measurer"]


def create_measurer(config: MeasurerConfig) -> Measurer:
    """Nothing is started before the first use. `close` of the result ends what was started."""
    from workers.ray_measurer import RayMeasurer  # the import of Ray takes a second; a bad script is told before it

    return RayMeasurer(config)
