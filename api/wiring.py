"""The composition root: builds every adapter. Heavy rooms are imported where they are first needed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from api.defaults import default_paths, visible_gpus
from api.settings import ApiSettings
from db import SqlStore, open_store
from tuner.ports import MeasurePolicy, Measurer

if TYPE_CHECKING:
    from search_space.target import Target
    from workers.script import Scenario


class ClosableMeasurer(Measurer, Protocol):
    def close(self) -> None:
        """Give every device back."""


@dataclass(frozen=True)
class MeasurerChoice:
    """What stands behind ``--measurer``: ``ray`` (real devices), ``scripted:FILE`` or ``recorded:FILE``."""

    text: str
    scenario: Scenario | None

    @staticmethod
    def parse(text: str) -> MeasurerChoice:
        """ValueError naming what is wrong with the choice or with its file."""
        from workers.config import parse_measurer

        return MeasurerChoice(text, parse_measurer(text))


def build_store(url: str, migrate: bool = False) -> SqlStore:
    """The database at `url`; a folder that an SQLite file needs is made."""
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    return open_store(url, migrate=migrate)


def build_measurer(
    choice: MeasurerChoice, ray_address: str | None = None, cores: int | None = None, peers: Sequence[str] = ()
) -> ClosableMeasurer:
    """`peers`: users' own kernels, module:function. ValueError for one that is not of that form."""
    from workers.peers import check_spec

    checked = tuple(check_spec(spec) for spec in peers)
    return _build_measurer(choice, ray_address, cores, checked)


def _build_measurer(
    choice: MeasurerChoice, ray_address: str | None, cores: int | None, peers: tuple[str, ...]
) -> ClosableMeasurer:
    from workers.config import MeasurerConfig
    from workers.gpu_host import find_gpus
    from workers.ray_measurer import RayMeasurer

    cache = default_paths().cache
    temporary = Path(tempfile.gettempdir())
    # A script stands in for every device, and a cluster's nodes tell their own.
    local = choice.scenario is None and ray_address is None
    config = MeasurerConfig(
        cache_dir=cache,
        gpus=find_gpus(visible_gpus()) if local else (),
        # One folder for all measurers of the host, whoever started them: a device is used by one at a time.
        lock_dir=temporary / "tilewright-locks",
        temp_parent=temporary,
        address=ray_address,
        cores=cores or 0,
        peers=peers,
        scenario=choice.scenario,
    )
    for folder in (cache, config.lock_dir):
        folder.mkdir(parents=True, exist_ok=True)
    return RayMeasurer(config)


def policies() -> Mapping[str, MeasurePolicy]:
    """How numbers are taken on each kind of device: caches warm on a CPU, cold on a GPU (as a model's layers run)."""
    return {"cpu": MeasurePolicy(cache="warm"), "cuda": MeasurePolicy(cache="cold", run_timeout_s=15.0)}


def build_api_settings(
    keys: Sequence[str] = (),
    accept_unknown_targets: bool = False,
    keyed: bool = False,
    keep_days: float | None = None,
) -> ApiSettings:
    return ApiSettings(
        keys=tuple(keys),
        keyed=keyed,
        host_targets=_host_targets(),
        accept_unknown_targets=accept_unknown_targets,
        keep_jobs_s=None if keep_days is None else keep_days * 86400.0,
    )


def _host_targets() -> tuple[Target, ...]:
    """What this host's devices can do, for checks at submit before a runner has reported them."""
    from workers.gpu_host import find_gpus
    from workers.host import host_target

    gpus = tuple(dict.fromkeys(gpu.target() for gpu in find_gpus(visible_gpus())))
    return (*gpus, host_target())


__all__ = ["ClosableMeasurer", "MeasurerChoice", "build_api_settings", "build_measurer", "build_store", "policies"]
