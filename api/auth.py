"""Who may use the service: a bearer key, or a dashboard session that a key opened."""

import hashlib
import hmac
from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers

from api.errors import BindingRefused, KeyMissing, KeyRefused

COOKIE = "tilewright_session"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
MIN_KEY_LENGTH = 16


def check_binding(host: str, keys: Sequence[str]) -> None:
    """BindingRefused for an address that others can reach while no key protects the service."""
    if not keys and not is_loopback(host):
        raise BindingRefused(
            f"without a key the service listens on loopback only, not on {host!r}: give a key file, or use 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or a literal address, is this machine alone."""
    name = host.lower().strip("[]")
    if name in LOOPBACK_NAMES:
        return True
    parts = name.split(".")
    return len(parts) == 4 and parts[0] == "127" and all(p.isascii() and p.isdigit() and int(p) < 256 for p in parts)


def read_keys(text: str) -> tuple[str, ...]:
    """Keys of a key file, one a line; blank lines and lines that start with # are left out. ValueError for a key that
    is short enough to be guessed, or for a file that holds none."""
    keys = tuple(line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise ValueError("the key file holds no key")
    for number, key in enumerate(keys, 1):
        if len(key) < MIN_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(f"key {number} must be at least {MIN_KEY_LENGTH} printable ASCII characters, no spaces")
    return keys


def opens(presented: str, keys: Sequence[str]) -> bool:
    """Whether `presented` is one of `keys`; takes as long for a near miss as for a far one."""
    candidate = hashlib.sha256(presented.encode("utf-8", "replace")).digest()
    matches = [hmac.compare_digest(candidate, hashlib.sha256(key.encode()).digest()) for key in keys]
    return any(matches)


def new_session(key: str, now: float, lifetime_s: float) -> str:
    """A cookie value that proves knowledge of `key` until it expires, without holding it."""
    expiry = str(int(now + lifetime_s))
    return f"{expiry}.{_sign(key, expiry)}"


def session_is_valid(value: str, keys: Sequence[str], now: float) -> bool:
    expiry, _, signature = value.partition(".")
    if not (expiry.isascii() and expiry.isdigit() and len(expiry) < 16 and signature.isascii()):
        return False
    matches = [hmac.compare_digest(signature, _sign(key, expiry)) for key in keys]
    return any(matches) and now < int(expiry)


def authenticate(headers: Headers, keys: Sequence[str], now: float) -> bool:
    """True when a session cookie, False when a bearer key opened the door; KeyMissing or KeyRefused otherwise."""
    authorization = headers.get("authorization")
    if authorization is not None:
        scheme, _, presented = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise KeyMissing("send Authorization: Bearer KEY")
        if not opens(presented.strip(), keys):
            raise KeyRefused("this key does not open the service")
        return False
    cookie = _cookie(headers.get("cookie", ""))
    if cookie is None:
        raise KeyMissing("send Authorization: Bearer KEY, or sign in at /login")
    if not session_is_valid(cookie, keys, now):
        raise KeyRefused("the session has expired: sign in again at /login")
    return True


def _cookie(header: str) -> str | None:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel else None


def _sign(key: str, expiry: str) -> str:
    return hmac.new(key.encode(), f"tilewright dashboard session until {expiry}".encode(), hashlib.sha256).hexdigest()
