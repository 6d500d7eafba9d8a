"""Reading a request's JSON strictly: what two parsers would read differently is refused, and what a database cannot
hold never gets that far."""

import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, NoReturn

from fastapi import Depends, Request

from api.errors import BodyNotJson, BodyTooDeep, BodyTooLarge, UnsupportedMediaType
from search_space.errors import InvalidField
from search_space.fields import INT64_MAX

_JSON_TYPE = re.compile(r"application/(?:[\w.!#$&^-]+\+)?json", re.ASCII)


async def read_body(request: Request) -> bytes:
    """The raw body: UnsupportedMediaType or BodyTooLarge before more than the limit was read."""
    _check_type(request.headers.get("content-type", ""))
    limit = request.app.state.service.settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLarge(f"the body may take {limit} bytes, {declared} are announced", limit_bytes=limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"the body may take {limit} bytes", limit_bytes=limit)
        parts.append(part)
    return b"".join(parts)


Body = Annotated[bytes, Depends(read_body)]


def _check_type(value: str) -> None:
    kind, *parameters = (part.strip().lower() for part in value.split(";"))
    if not _JSON_TYPE.fullmatch(kind):
        raise UnsupportedMediaType(f"send Content-Type: application/json, not {kind or 'none'}")
    for parameter in parameters:
        name, _, charset = parameter.partition("=")
        if name.strip() == "charset" and charset.strip().strip('"') not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(f"JSON is UTF-8 (RFC 8259 section 8.1), not {charset.strip()}")


def parse(raw: bytes, max_depth: int) -> object:
    """The document in `raw`. Refused: bytes that are not UTF-8, NaN and Infinity, integers beyond 64 bits, numbers
    beyond a double, repeated names, lone surrogates and NUL in strings, nesting deeper than `max_depth`."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise BodyNotJson(f"the body is not UTF-8 at byte {fault.start}") from None
    try:
        data = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_int64,
            parse_float=_double,
            object_pairs_hook=_unique,
        )
    except json.JSONDecodeError as fault:
        raise BodyNotJson(f"{fault.msg} at line {fault.lineno}, column {fault.colno}") from None
    except RecursionError:
        raise BodyTooDeep(f"at most {max_depth} levels", limit=max_depth) from None
    for path, value, depth in _walk(data):
        if depth > max_depth:
            raise BodyTooDeep(f"at most {max_depth} levels", limit=max_depth)
        if isinstance(value, str):
            check_text(path, value)
    return data


def check_text(field: str, value: str) -> None:
    """InvalidField for text that a database cannot hold."""
    if "\0" in value:
        raise InvalidField(field, "must not hold the character U+0000")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise InvalidField(field, "holds half a surrogate pair, which is no character")


def _walk(data: object) -> Iterator[tuple[str, object, int]]:
    """(dotted path, value, depth) of every value and name, without recursion."""
    stack: list[tuple[str, object, int]] = [("", data, 0)]
    while stack:
        path, value, depth = stack.pop()
        yield path, value, depth
        prefix = f"{path}." if path else ""
        if isinstance(value, dict):
            for name, item in value.items():
                yield path, name, depth
                stack.append((f"{prefix}{name}", item, depth + 1))
        elif isinstance(value, list):
            stack.extend((f"{prefix}{i}", item, depth + 1) for i, item in enumerate(value))


def _refuse_constant(name: str) -> NoReturn:
    raise BodyNotJson(f"{name} is not a JSON number")


def _int64(digits: str) -> int:
    if len(digits) > 20 or abs(value := int(digits)) > INT64_MAX:
        raise BodyNotJson(f"the integer {digits[:24]}{'...' * (len(digits) > 24)} is beyond 64 bits")
    return value


def _double(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise BodyNotJson(f"the number {digits[:24]} is beyond a double")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise BodyNotJson(f"the name {repeated[:100]!r} stands twice in one object")
    return found
