"""The API in this process, for commands without a server: the same routes on the local database."""

import asyncio

import httpx

from api.app import create_app
from api.commands.database import open_database
from api.settings import ApiSettings
from api.wiring import build_api_settings
from tilewright.client import Client


class InProcessTransport(httpx.BaseTransport):
    """Hands each request to an ASGI application, on an event loop of its own. Not thread-safe."""

    def __init__(self, app: object) -> None:
        self._inner = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        self._loop = asyncio.new_event_loop()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._loop.run_until_complete(self._answer(request))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        # The inner transport wants an asynchronous body; what commands send is small.
        sent = httpx.Request(request.method, request.url, headers=request.headers, content=request.read())
        answer = await self._inner.handle_async_request(sent)
        body = await answer.aread()
        return httpx.Response(answer.status_code, headers=answer.headers, content=body)

    def close(self) -> None:
        self._loop.close()


def open_client(db: str | None, submits: bool = False) -> Client:
    """A client of the database at `db`, or of the default one. Only one that `submits` needs to know this host.

    Raises Refused where the database cannot be used.
    """
    store = open_database(db, migrate=True)
    app = create_app(store, build_api_settings() if submits else ApiSettings())
    return Client("http://127.0.0.1", transport=InProcessTransport(app))


__all__ = ["InProcessTransport", "open_client"]
