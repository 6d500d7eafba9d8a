"""Signing in with a key: the browser then holds a session, which proves the key without holding it."""

from collections.abc import Callable
from urllib.parse import parse_qs

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from api.auth import COOKIE
from api.errors import BodyTooLarge, KeyRefused
from api.service import Svc

Renderer = Callable[..., HTMLResponse]
MAX_FORM_BYTES = 4096


def install(app: FastAPI, page: Renderer) -> None:
    router = APIRouter(include_in_schema=False)

    @router.get("/login")
    async def form(next: str = "/") -> HTMLResponse:  # noqa: A002  the parameter's public name
        return page("login.html", next=_local(next), refused=False)

    @router.post("/login")
    async def enter(svc: Svc, request: Request) -> Response:
        fields = parse_qs((await _read(request)).decode("utf-8", "replace"))
        key, target = fields.get("key", [""])[0].strip(), _local(fields.get("next", ["/"])[0])
        settings = svc.settings
        try:
            principal = await svc.ring.open(key)
        except KeyRefused:
            return page("login.html", 401, next=target, refused=True)
        response = RedirectResponse(target, 303)
        response.set_cookie(
            COOKIE,
            svc.ring.new_session(principal, settings.session_s),
            max_age=int(settings.session_s),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    @router.post("/logout")
    async def leave() -> Response:
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    app.include_router(router)


async def _read(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise BodyTooLarge(f"the form may take {MAX_FORM_BYTES} bytes", limit_bytes=MAX_FORM_BYTES)
    return body


def _local(path: str) -> str:
    """A path on this service; anything that a browser could read as another host becomes the start page."""
    plain = path.isprintable() and path.isascii() and "\\" not in path
    return path if plain and path.startswith("/") and not path.startswith("//") else "/"
