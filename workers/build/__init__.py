"""From a candidate to an artifact."""

from workers.build.build import build_candidate, build_lowered
from workers.build.cache import BuildCache
from workers.build.result import BuildError, BuildResult, BuildToolMissing, LowerError

__all__ = [
    "BuildCache",
    "BuildError",
    "BuildResult",
    "BuildToolMissing",
    "LowerError",
    "build_candidate",
    "build_lowered",
]
