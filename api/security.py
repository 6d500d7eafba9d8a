"""The door of the service, as ASGI middleware: host, key, origin, and the headers that every answer carries."""

import time
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import problems
from api.auth import LOCAL, KeyRing, Principal, is_loopback
from api.errors import ApiError, CrossSite, HostRefused
from api.limits import RateLimiter
from api.metrics import Metrics
from api.settings import ApiSettings
from tuner.access import Scope as Permission
from tuner.ports import StoreUnavailable

# Only files of our own. The chart library adds two style elements: an empty one that it fills by rules (the hash of
# nothing), and one for maps that we do not draw (plotly 7.1.0's; of another version it would merely be left out).
_STYLES = (
    "'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' 'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='"
)
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src {_STYLES}; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Referrer-Policy: with no-referrer a browser would send "Origin: null" with our own sign-in form.
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Open to all: probes need no secret, and the sign-in page needs its style.
OPEN_PATHS = frozenset({"/health/live", "/health/ready", "/login"})
OPEN_PREFIX = "/static/"
ANYBODY = Principal("anybody", Permission.READ, by_cookie=True)


class Door:
    """Answers what may not come in; counts and dresses what goes out."""

    def __init__(self, app: ASGIApp, settings: ApiSettings, metrics: Metrics, ring: KeyRing) -> None:
        self._app = app
        self._ring = ring
        self._limiter = RateLimiter(settings.now)
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        answered = False

        async def dressed(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                self._observe(scope, message["status"], time.perf_counter() - started)
            await send(message)

        try:
            refusal = await self._refusal(scope)
            await (refusal or self._app)(scope, receive, dressed)
        except Exception as fault:
            if answered:
                raise
            await problems.internal(Request(scope), fault)(scope, receive, dressed)

    async def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        try:
            principal = await self._principal(scope, headers)
            scope["tilewright.principal"] = principal
            if scope["method"] not in SAFE_METHODS:
                _check_origin(headers, strict=principal.by_cookie)
            self._limiter.take(principal.key_id, principal.limits.requests_per_minute)
        except (ApiError, StoreUnavailable) as fault:
            if _wants_page(scope, headers) and problems.row_of(fault).status == 401:
                return RedirectResponse(f"/login?next={quote(scope['path'], safe='/')}", 303)
            return problems.render(problems.row_of(fault), *problems.describe(fault))
        return None

    async def _principal(self, scope: Scope, headers: Headers) -> Principal:
        """Who knocks. One that a cookie opened the door for might be a foreign page."""
        if not self._settings.is_keyed:
            _check_host(headers.get("host", ""), self._settings.allowed_hosts)
            return LOCAL
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return ANYBODY
        return await self._ring.authenticate(headers)

    def _observe(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.latency.labels(scope["method"], route, str(status)).observe(seconds)


def _check_host(header: str, allowed: tuple[str, ...]) -> None:
    """HostRefused for a name that is not this machine's: a page elsewhere may have pointed its own name at us."""
    name = header if header.count(":") > 1 and not header.startswith("[") else _without_port(header)
    if not is_loopback(name) and name.lower() not in {a.lower() for a in allowed}:
        raise HostRefused(f"without a key the service answers to loopback names only, not to {header[:100]!r}")


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _check_origin(headers: Headers, strict: bool) -> None:
    """CrossSite when a browser says that another site's page sent this."""
    if not strict:
        return
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise CrossSite("the request comes from another site's page")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise CrossSite(f"the request comes from a page of {origin[:100]}")


def _wants_page(scope: Scope, headers: Headers) -> bool:
    return (
        scope["method"] == "GET"
        and "text/html" in headers.get("accept", "")
        and not scope["path"].startswith(("/v1/", "/metrics", "/openapi"))
    )
