"""The child's side of `workers.child`: reads requests, calls the handler, writes answers."""

import fcntl
import importlib
import json
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping

from workers.child import HEADER

Handler = Callable[[Mapping[str, object], bytes], tuple[Mapping[str, object], bytes]]


def main(fd: int, lifeline: int, entry: str) -> None:
    """Serve requests on the socket `fd` until it closes. `lifeline` closes when the supervisor dies."""
    _die_with_supervisor(lifeline)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=fd) as channel:
        try:
            handler = _make_handler(channel, entry)
        except Exception as error:  # noqa: BLE001  whatever the import raises is the answer
            _send(channel, _error(error), b"")
            return
        _send(channel, {"ready": True}, b"")
        while (request := _read(channel)) is not None:
            try:
                answer, payload = handler(*request)
            except Exception as error:  # noqa: BLE001  a handler's exception is an answer, not an end
                answer, payload = _error(error), b""
            _send(channel, answer, payload)


def _make_handler(channel: socket.socket, entry: str) -> Handler:
    start = _read(channel)
    if start is None:
        raise SystemExit(0)
    environment, arguments = start[0]["environment"], start[0]["arguments"]
    assert isinstance(environment, dict)
    os.environ.update(environment)
    module, _, name = entry.partition(":")
    handler: Handler = getattr(importlib.import_module(module), name)(arguments)
    return handler


def _die_with_supervisor(lifeline: int) -> None:
    """SIGIO, whose default action ends a process, to the whole group when the other end of the pipe closes.

    Unlike PR_SET_PDEATHSIG this is not tied to the thread that started the child, and it reaches grandchildren.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        closed = os.read(lifeline, 1) == b""  # it may have closed before the signal was asked for
    except BlockingIOError:
        closed = False
    if closed:
        os.killpg(0, signal.SIGKILL)


def _error(error: Exception) -> dict[str, object]:
    kind = "MemoryError" if isinstance(error, MemoryError) else type(error).__name__
    return {"error": {"type": kind, "message": str(error)}}


def _read(channel: socket.socket) -> tuple[dict[str, object], bytes] | None:
    header = _exactly(channel, HEADER.size)
    if header is None:
        return None
    length, extra = HEADER.unpack(header)
    body, payload = _exactly(channel, length), _exactly(channel, extra)
    if body is None or payload is None:
        return None
    return json.loads(body), payload


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = channel.recv(min(size - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _send(channel: socket.socket, message: Mapping[str, object], payload: bytes) -> None:
    body = json.dumps(message).encode()
    channel.sendall(HEADER.pack(len(body), len(payload)) + body)
    channel.sendall(payload)
