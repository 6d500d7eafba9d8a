"""Rows <-> nouns. Nouns are stored as strict JSON text, so that both databases keep the very same characters.

A number that is not finite does not exist: it is stored as null. What is parsed from a text alone is immutable and
cached, because the same workloads, targets and environments come back in every answer.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping

from search_space import registry as _registry  # noqa: F401  registers the ops that parse_workload knows
from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity
from search_space.target import Target, TargetQuery
from search_space.workload import Workload, canonical_bytes, parse_workload
from tuner.best import BestConfig
from tuner.job import JobSpec
from tuner.measurement import Measurement

_CACHED = 8192


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def plain(value: object) -> object:
    """`value` with every number that is not finite as None, deeply; tuples become lists."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def dump(data: object) -> str:
    """Strict JSON in ASCII: PostgreSQL's text then takes any string, even one with a NUL or half a surrogate pair."""
    return json.dumps(plain(data), separators=(",", ":"), allow_nan=False)


def canonical(data: Mapping[str, object]) -> str:
    """The text that two equal nouns share; ValueError where a number is not finite."""
    return canonical_bytes(data).decode()


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def clean(text: str | None) -> str | None:
    """What both databases accept as text: no NUL, no lone surrogate."""
    return None if text is None else text.replace("\x00", "�").encode("utf-8", "replace").decode()


def load(text: str) -> dict[str, object]:
    data = json.loads(text)
    assert isinstance(data, dict)
    return data


@functools.lru_cache(_CACHED)
def workload_of(text: str) -> Workload:
    return parse_workload(json.loads(text))


@functools.lru_cache(_CACHED)
def target_of(text: str) -> Target:
    return Target.from_json(json.loads(text))


@functools.lru_cache(_CACHED)
def query_of(text: str) -> TargetQuery:
    return TargetQuery.from_json(json.loads(text))


@functools.lru_cache(_CACHED)
def identity_of(text: str) -> EnvironmentIdentity:
    return EnvironmentIdentity.from_json(json.loads(text))


@functools.lru_cache(_CACHED)
def candidate_of(text: str) -> Candidate:
    return Candidate.from_json(json.loads(text))


@functools.lru_cache(_CACHED)
def best_of(text: str) -> BestConfig:
    return BestConfig.from_json(json.loads(text))


@functools.lru_cache(256)  # a request may name 4096 tasks
def spec_of(text: str) -> JobSpec:
    return JobSpec.from_json(json.loads(text))


def measurement_text(measurement: Measurement) -> str:
    return dump(measurement.to_json())


def measurement_of(text: str) -> Measurement:
    return Measurement.from_json(json.loads(text))


def extents_of(workload: Workload) -> dict[str, int]:
    """The fields that say how large the workload is, defaults included; what is left are its dtypes and flags.

    A mask's window is a flag: another window is another kernel, not a nearby size.
    """
    values = {f.name: getattr(workload, f.name) for f in dataclasses.fields(workload)}  # type: ignore[arg-type]
    return {n: v for n, v in values.items() if type(v) is int and not n.startswith("window")}


def family_of(workload: Workload) -> str:
    """Key that workloads of the same op, dtypes and flags share, whatever their extents."""
    extents = extents_of(workload)
    rest = {name: value for name, value in workload.to_json().items() if name not in extents}
    return digest(canonical(rest))[:16]
