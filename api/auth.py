"""Who may use the service: a bearer key, or a dashboard session that a key opened."""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from api.errors import BindingRefused, KeyMissing, KeyRefused
from tuner.access import UNLIMITED, KeyLimits, KeyView, Scope
from tuner.views import ServiceStore

COOKIE = "tilewright_session"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
MIN_KEY_LENGTH = 16
# For so long a revoked key may still open the service: the price of not asking the database at every request.
CACHE_S = 5.0
MAX_CACHED = 4096
MAX_PRESENTED = 512


@dataclass(frozen=True)
class Principal:
    """Who sent a request. `key_id`: of a made key, "bootstrap" for one of the key file, "local" without keys."""

    key_id: str
    scope: Scope = Scope.ADMIN
    limits: KeyLimits = UNLIMITED
    by_cookie: bool = False


# A browser on this machine, or what runs on it: the keyless service answers to loopback names alone.
LOCAL = Principal("local", by_cookie=True)
BOOTSTRAP = "bootstrap"


def check_binding(host: str, keyed: bool) -> None:
    """BindingRefused for an address that others can reach while no key protects the service."""
    if not keyed and not is_loopback(host):
        raise BindingRefused(
            f"without a key the service listens on loopback only, not on {host!r}: give a key file, make a key with "
            "`tilewright keys create`, or use 127.0.0.1"
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


class KeyRing:
    """The keys of one application: those of the key file (bootstrap, all scopes) and those in the database.

    Made keys are looked up in a thread, and what was found is remembered for CACHE_S. For use on one event loop.
    """

    def __init__(self, store: ServiceStore, bootstrap: Sequence[str], now: Callable[[], float]) -> None:
        self._store, self._bootstrap, self._now = store, bootstrap, now
        # Sessions outlive a restart, and hold for every replica, where there is a key file to derive the secret from.
        known = "\n".join(bootstrap).encode()
        self._secret = hashlib.sha256(b"tilewright sessions" + known).digest() if known else secrets.token_bytes(32)
        self._found: OrderedDict[tuple[str, str], tuple[float, KeyView | None]] = OrderedDict()

    async def authenticate(self, headers: Headers) -> Principal:
        """By bearer key or session cookie; KeyMissing or KeyRefused otherwise."""
        authorization = headers.get("authorization")
        if authorization is not None:
            scheme, _, presented = authorization.partition(" ")
            if scheme.lower() != "bearer":
                raise KeyMissing("send Authorization: Bearer KEY")
            return await self.open(presented.strip())
        cookie = _cookie(headers.get("cookie", ""))
        if cookie is None:
            raise KeyMissing("send Authorization: Bearer KEY, or sign in at /login")
        return await self._session(cookie)

    async def open(self, presented: str) -> Principal:
        """The principal of a key; KeyRefused for one that is not known or was revoked."""
        if opens(presented, self._bootstrap):
            return Principal(BOOTSTRAP)
        found = None
        if 0 < len(presented) <= MAX_PRESENTED:
            hashed = hashlib.sha256(presented.encode("utf-8", "replace")).hexdigest()  # no key stays in memory
            found = await self._remembered("key", hashed, lambda: self._store.find_key(presented))
        if found is None:
            raise KeyRefused("this key does not open the service")
        return Principal(found.id, found.scope, found.limits)

    def new_session(self, principal: Principal, lifetime_s: float) -> str:
        """A cookie value that stands for the principal until it expires; it holds no key."""
        told = f"{int(self._now() + lifetime_s)}.{principal.key_id}"
        return f"{told}.{self._sign(told)}"

    async def _session(self, value: str) -> Principal:
        told, _, signature = value.rpartition(".")
        expiry, _, key_id = told.partition(".")
        plain = value.isascii() and expiry.isdigit() and len(expiry) < 16 and len(key_id) <= 40
        if not (plain and hmac.compare_digest(signature, self._sign(told)) and self._now() < int(expiry)):
            raise KeyRefused("the session has expired: sign in again at /login")
        if key_id == BOOTSTRAP:
            return Principal(BOOTSTRAP, by_cookie=True)
        found = await self._remembered("id", key_id, lambda: self._store.key(key_id))
        if found is None:
            raise KeyRefused("the key of this session was revoked: sign in with another")
        return Principal(found.id, found.scope, found.limits, by_cookie=True)

    def _sign(self, told: str) -> str:
        return hmac.new(self._secret, told.encode(), hashlib.sha256).hexdigest()

    async def _remembered(self, kind: str, name: str, find: Callable[[], KeyView | None]) -> KeyView | None:
        known = self._found.get((kind, name))
        if known is not None and self._now() < known[0]:
            return known[1]
        found = await run_in_threadpool(find)
        self._found[kind, name] = (self._now() + CACHE_S, found)
        self._found.move_to_end((kind, name))
        while len(self._found) > MAX_CACHED:
            self._found.popitem(last=False)
        return found


def _cookie(header: str) -> str | None:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel else None
