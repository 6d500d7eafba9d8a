"""A workload and a target written as query parameters."""

import dataclasses
import re
from collections.abc import Mapping

from search_space.errors import InvalidField
from search_space.target import TargetQuery
from search_space.workload import Workload, known_ops, parse_workload

# Parameters that narrow the environment a schedule was measured in, by the names of EnvironmentIdentity.
IDENTITY_FILTERS = ("driver", "cuda", "tvm", "compiler", "policy")
TARGET_PARAMETERS = ("target", "arch", "device", "cores")
SHORTHANDS: Mapping[str, type] = {"dtype": str, "heads": int, "seq": int, "pass": str}
_SHORTHANDS_OF = {"gemm": ("dtype",), "attention": ("heads", "seq", "pass")}
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a lookup asks for. `filters` holds identity fields with the value each must have."""

    workload: Workload
    target: TargetQuery
    filters: Mapping[str, str]


def fields_of(op: str) -> dict[str, type]:
    """name -> int, bool, float or str of every field that a workload of `op` takes, shorthands included."""
    cls = next(c for c in Workload.__subclasses__() if c.op == op)
    found = {f.name: _plain_type(f.type) for f in dataclasses.fields(cls) if f.name != "pass_"}  # type: ignore[arg-type]
    return found | {name: SHORTHANDS[name] for name in _SHORTHANDS_OF.get(op, ())}


def _plain_type(annotation: object) -> type:
    return next((t for t in (bool, int, float) if annotation is t), float if annotation == (float | None) else str)


def parse(query: Mapping[str, str]) -> Asked:
    """InvalidField naming the parameter that is unknown or cannot be right."""
    op = query.get("op")
    if op not in known_ops():
        message = "is required" if op is None else f"must be one of {', '.join(known_ops())}, got {op[:100]!r}"
        raise InvalidField("op", message, known_ops())
    types = fields_of(op)
    known = ("op", *sorted(types), *TARGET_PARAMETERS, *IDENTITY_FILTERS, "nearest")
    data: dict[str, object] = {"op": op}
    for name, text in query.items():
        if name not in known:
            raise InvalidField(name[:100], "unknown parameter", known)
        if name in types:
            data[name] = _convert(name, text, types[name])
    filters = {name: query[name] for name in IDENTITY_FILTERS if name in query}
    return Asked(parse_workload(data), _target(query), filters)


def boolean(query: Mapping[str, str], name: str) -> bool:
    return bool(_convert(name, query.get(name, "false"), bool))


def _convert(name: str, text: str, kind: type) -> object:
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise InvalidField(name, f"must be true, false, 1 or 0, got {text[:100]!r}", tuple(_BOOLEANS))
        return _BOOLEANS[text.lower()]
    if kind is int:
        if not _INTEGER.fullmatch(text):
            raise InvalidField(name, f"must be an integer, got {text[:100]!r}")
        return int(text)
    if kind is float:
        if not _FLOAT.fullmatch(text):
            raise InvalidField(name, f"must be a number, got {text[:100]!r}")
        return float(text)
    return text


def _target(query: Mapping[str, str]) -> TargetQuery:
    data: dict[str, object] = {"kind": query.get("target", "auto")}
    for name in ("arch", "device"):
        if name in query:
            data[name] = query[name]
    if "cores" in query:
        data["cores"] = _convert("cores", query["cores"], int)
    try:
        return TargetQuery.from_json(data)
    except InvalidField as fault:
        name = {"target.kind": "target", "target.model": "device"}.get(fault.field, fault.field.rpartition(".")[2])
        raise InvalidField(name, fault.message, fault.allowed) from None
