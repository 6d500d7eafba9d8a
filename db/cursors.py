"""Page cursors: opaque texts that hold the sort key of the last row of a page and the name of its list."""

import base64
import binascii
import json
import math

from tuner.views import BadCursor

MAX_PAGE = 1000
Key = tuple[float | int | str, ...]


def encode(listing: str, key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps([listing, *key]).encode()).decode().rstrip("=")


def decode(listing: str, cursor: str | None, *types: type) -> Key | None:
    """The key inside `cursor`, its parts of `types`; None without a cursor, BadCursor for one that is not ours."""
    if cursor is None:
        return None
    try:
        parts = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise BadCursor("not a cursor of this service") from None
    if not isinstance(parts, list) or len(parts) != len(types) + 1 or parts[0] != listing:
        raise BadCursor("a cursor of another list")
    key = tuple(parts[1:])
    for value, wanted in zip(key, types, strict=True):
        if type(value) is not wanted or (isinstance(value, float) and not math.isfinite(value)):
            raise BadCursor("not a cursor of this service")
        if isinstance(value, int) and abs(value) > 2**62:
            raise BadCursor("not a cursor of this service")
    return key


def page_size(limit: int) -> int:
    """Between 1 and MAX_PAGE, whatever was asked."""
    return max(1, min(limit, MAX_PAGE))
