"""Server-sent events of a job: one poller for each watched job, however many watch it.

The poller reads the store in a thread and keeps the newest events; a watcher that is further behind reads its own
pages until it has caught up. Sequences have no gaps, so "after" is all that a watcher has to remember.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from fastapi.concurrency import run_in_threadpool
from sse_starlette import ServerSentEvent

from api.errors import TooManyWatchers
from api.present import finite, instant
from api.settings import ApiSettings
from tuner.job import FINAL
from tuner.views import Event, ServiceStore

log = logging.getLogger(__name__)

PAGE = 500
KEPT = 4 * PAGE
_TIMES = ("started_at", "finished_at")


@dataclass
class _Channel:
    """What the watchers of one job share; touched on the event loop only."""

    recent: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT))
    position: int = 0  # sequence of the newest event read
    ended: bool = False  # the job is final and everything was read
    watchers: int = 0
    poller: asyncio.Task[None] | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def announce(self) -> None:
        """Wake every waiting watcher; the next wait starts anew."""
        self.news.set()
        self.news = asyncio.Event()


class EventHub:
    """Belongs to one event loop."""

    def __init__(self, store: ServiceStore, settings: ApiSettings) -> None:
        self._store = store
        self._settings = settings
        self._channels: dict[str, _Channel] = {}
        self._watchers = 0

    @property
    def watchers(self) -> int:
        return self._watchers

    def check_free(self) -> None:
        if self._watchers >= self._settings.max_watchers:
            raise TooManyWatchers(f"{self._watchers} event streams are open; try again later or poll the job")

    async def watch(self, job_id: str, after: int) -> AsyncIterator[ServerSentEvent]:
        """Every event of the job with a sequence above `after`, as it comes; ends when the job has ended."""
        channel = self._enter(job_id, after)
        try:
            while True:
                news, ended = channel.news, channel.ended
                batch = await self._after(job_id, channel, after)
                for event in batch:
                    yield render(event)
                if batch:
                    after = batch[-1].sequence
                elif ended:
                    return
                elif after >= channel.position:
                    await news.wait()
                else:  # the store shows less than the poller saw: never spin on it
                    await asyncio.sleep(self._settings.event_poll_s)
        finally:
            self._leave(job_id, channel)

    async def _after(self, job_id: str, channel: _Channel, after: int) -> Sequence[Event]:
        if after >= channel.position:
            return ()
        if channel.recent and channel.recent[0].sequence <= after + 1:
            return [e for e in channel.recent if e.sequence > after]
        return await run_in_threadpool(self._store.events, job_id, after, PAGE)

    def _enter(self, job_id: str, after: int) -> _Channel:
        channel = self._channels.get(job_id)
        if channel is None:
            channel = self._channels[job_id] = _Channel(position=after)
            channel.poller = asyncio.create_task(self._poll(job_id, channel))
        channel.watchers += 1
        self._watchers += 1
        return channel

    def _leave(self, job_id: str, channel: _Channel) -> None:
        channel.watchers -= 1
        self._watchers -= 1
        if channel.watchers or channel.poller is None:
            return
        if self._channels.get(job_id) is channel:
            del self._channels[job_id]
        channel.poller.cancel()

    async def _poll(self, job_id: str, channel: _Channel) -> None:
        while not channel.ended:
            try:
                events, ended = await run_in_threadpool(self._read, job_id, channel.position)
            except Exception:
                log.exception("reading the events of %s failed; trying again", job_id)
                await asyncio.sleep(10 * self._settings.event_poll_s)
                continue
            channel.recent.extend(events)
            if events:
                channel.position = events[-1].sequence
            channel.ended = ended
            if events or ended:
                channel.announce()
            if len(events) < PAGE and not ended:
                await asyncio.sleep(self._settings.event_poll_s)

    def _read(self, job_id: str, after: int) -> tuple[Sequence[Event], bool]:
        """Runs in a thread. The state is read before the events: an event that ends a job comes with its state."""
        events = self._store.events(job_id, after, PAGE)
        if events:
            return events, False
        if self._store.job(job_id).state not in FINAL:
            return (), False
        events = self._store.events(job_id, after, PAGE)
        return events, not events


def render(event: Event) -> ServerSentEvent:
    """The event with its times as the other answers write them."""
    data: dict[str, object] = {"sequence": event.sequence, "at": instant(event.at), **event.data}
    for name in _TIMES:
        if isinstance(moment := data.get(name), int | float):
            data[name] = instant(moment)
    text = json.dumps(finite(data), allow_nan=False, separators=(",", ":"), default=_rfc3339)
    return ServerSentEvent(data=text, event=event.kind, id=str(event.sequence))


def _rfc3339(value: object) -> str:
    assert isinstance(value, datetime)
    return value.isoformat().replace("+00:00", "Z")
