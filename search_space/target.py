"""The machine a schedule is for, as plain data."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from search_space.errors import InvalidField

KINDS = ("cpu", "cuda")


@dataclass(frozen=True)
class Target:
    """What one device can do; what a sketch may read to decide on its knobs.

    `arch`: the LLVM processor name on a CPU (``znver3``), ``sm_90a`` and the like on a GPU. `model` is the device's
    product name. Sizes are bytes. `features` are instruction sets as LLVM names them (``avx2``, ``avx512f``,
    ``avx512bf16``, ``amx-bf16``, ``neon``).
    """

    kind: str
    arch: str
    model: str
    cores: int  # CPU cores the worker owns, or streaming multiprocessors
    vector_bits: int = 0  # widest vector register (CPU)
    l1_bytes: int = 0  # data cache of one core
    l2_bytes: int = 0  # of one core (CPU) or of the device (GPU)
    l3_bytes: int = 0  # shared last level (CPU)
    memory_bytes: int = 0  # device memory usable by a workload
    shared_bytes: int = 0  # shared memory one thread block may use (GPU)
    features: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "Target":
        """Reads what to_json wrote (a stored row, a heartbeat); not for requests, which go through TargetQuery."""
        known = {f.name for f in dataclasses.fields(Target)}
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
        return Target(**values)  # type: ignore[arg-type]

    @property
    def vector_bytes(self) -> int:
        return self.vector_bits // 8


@dataclass(frozen=True)
class TargetQuery:
    """What a request asks of the device: `kind` is cpu, cuda or auto (any); None leaves the rest open."""

    kind: str = "auto"
    arch: str | None = None
    model: str | None = None
    cores: int | None = None

    @staticmethod
    def from_json(data: object) -> "TargetQuery":
        """Accepts "auto", "cpu", "cuda", or an object with `kind` and optional arch, model, cores (num-cores)."""
        if data is None:
            return TargetQuery()
        if isinstance(data, str):
            data = {"kind": data}
        if not isinstance(data, Mapping):
            raise InvalidField("target", "must be a string or an object", _ALLOWED)
        raw = dict(data)
        kind = raw.pop("kind", "auto")
        if kind == "llvm":  # TVM's name of the kind; its num-cores is filled in by the worker's host
            kind = "cpu"
        if not isinstance(kind, str) or kind not in (*KINDS, "auto"):
            raise InvalidField("target.kind", f"must be one of {', '.join(_ALLOWED)}, got {kind!r}", _ALLOWED)
        cores = raw.pop("num-cores", raw.pop("cores", None))
        if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int) or cores < 1):
            raise InvalidField("target.cores", f"must be a positive integer, got {cores!r}")
        texts: dict[str, str | None] = {}
        for name, alias in (("arch", "mcpu"), ("model", "device")):
            value = raw.pop(name, raw.pop(alias, None))
            if value is not None and (not isinstance(value, str) or not value or len(value) > 200):
                raise InvalidField(f"target.{name}", f"must be a short string, got {value!r}")
            texts[name] = value
        for name in raw:
            raise InvalidField(f"target.{name}", "unknown field", ("kind", "arch", "model", "cores"))
        return TargetQuery(kind, texts["arch"], texts["model"], cores)

    def to_json(self) -> dict[str, object]:
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}

    def matches(self, target: Target) -> bool:
        return (
            self.kind in ("auto", target.kind)
            and self.arch in (None, target.arch)
            and self.model in (None, target.model)
            and self.cores in (None, target.cores)
        )


_ALLOWED = (*KINDS, "auto", "llvm")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
