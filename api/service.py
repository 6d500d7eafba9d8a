"""What the routes of one application share, and how they get at it."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.auth import KeyRing, Principal
from api.errors import ScopeRefused
from api.lookup_counter import LookupCounter
from api.metrics import Metrics
from api.settings import ApiSettings
from api.sse import EventHub
from search_space.errors import InvalidField
from tuner.access import Scope
from tuner.views import ServiceStore


@dataclass(frozen=True)
class Service:
    store: ServiceStore
    settings: ApiSettings
    hub: EventHub
    counter: LookupCounter
    metrics: Metrics
    ring: KeyRing


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Svc = Annotated[Service, Depends(_service)]


async def _principal(request: Request) -> Principal:
    principal: Principal = request.scope["tilewright.principal"]
    return principal


Who = Annotated[Principal, Depends(_principal)]


class Needs:
    """A route's dependency: ScopeRefused unless the request's key has the scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, who: Who) -> None:
        if not who.scope.allows(self.scope):
            raise ScopeRefused(f"this needs a key of scope {self.scope}, this one has {who.scope}", needs=self.scope)


class OnlyQuery:
    """Refuses a query parameter that nobody would read, or one given twice: a misspelt filter must not be ignored."""

    def __init__(self, *known: str) -> None:
        self.known = known

    async def __call__(self, request: Request) -> None:
        query_once(request, self.known)


def query_once(request: Request, known: tuple[str, ...] | None) -> dict[str, str]:
    """The query as a dict; InvalidField for a repeated parameter, for one not in `known`, or for U+0000."""
    out: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if known is not None and name not in known:
            raise InvalidField(name[:100], "unknown parameter", known)
        if name in out:
            raise InvalidField(name[:100], "is given twice")
        if "\0" in value:
            raise InvalidField(name[:100], "must not hold the character U+0000")
        out[name] = value
    return out
