"""The clients of the load benchmark: watchers that reconnect, and lookups at a fixed rate."""

import asyncio
import random
import time
from collections.abc import Sequence

import httpx

FINAL = ("completed", "failed", "cancelled")


class Watchers:
    """`count` event streams over `jobs` (whose members change while jobs end), each cut now and then."""

    def __init__(self, client: httpx.AsyncClient, jobs: Sequence[str], count: int, stop: asyncio.Event) -> None:
        self._client, self._jobs, self._count, self._stop = client, jobs, count, stop
        self._rng = random.Random(0)
        self.events = self.reconnects = self.gaps = self.doubles = self.broken = 0

    def summary(self) -> dict[str, int]:
        names = ("events", "reconnects", "gaps", "doubles", "broken")
        return {"streams": self._count, **{name: getattr(self, name) for name in names}}

    async def run(self) -> None:
        await asyncio.gather(*(self._watch(i) for i in range(self._count)))

    async def _watch(self, place: int) -> None:
        while not self._stop.is_set():
            job, last = self._jobs[place % len(self._jobs)], 0
            while not self._stop.is_set():
                try:
                    last, ended = await self._stream(job, last)
                except httpx.HTTPError:
                    self.broken += 1
                    await asyncio.sleep(0.5)
                    continue
                if ended:
                    break
                self.reconnects += 1

    async def _stream(self, job: str, last: int) -> tuple[int, bool]:
        """Read for 20 to 60 s, or to the job's end: (last sequence, whether the job ended)."""
        until = time.monotonic() + self._rng.uniform(20.0, 60.0)
        headers = {"Last-Event-ID": str(last)} if last else {}
        async with self._client.stream("GET", f"/v1/jobs/{job}/events", headers=headers, timeout=60.0) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("id:"):
                    sequence = int(line[3:])
                    self.events += 1
                    self.gaps += sequence > last + 1
                    self.doubles += sequence <= last
                    last = max(last, sequence)
                elif not line and (time.monotonic() > until or self._stop.is_set()):
                    return last, False
        return last, True


class Lookups:
    """Best-schedule queries, `rate` a second, each sent when it is due."""

    def __init__(
        self, client: httpx.AsyncClient, shapes: Sequence[dict[str, object]], rate: float, stop: asyncio.Event
    ) -> None:
        self._client, self._rate, self._stop = client, rate, stop
        self._asks = [{k: str(v) for k, v in s.items()} | {"target": "cpu"} for s in shapes]
        self._rng = random.Random(1)
        self.seconds: list[float] = []
        self.failed = 0

    async def run(self) -> None:
        begin, sent, flying = time.monotonic(), 0, set[asyncio.Task[None]]()
        while not self._stop.is_set():
            due = begin + sent / self._rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self._ask(due))
            flying.add(task)
            task.add_done_callback(flying.discard)
            sent += 1
        await asyncio.gather(*flying)

    async def _ask(self, due: float) -> None:
        try:
            answer = await self._client.get("/v1/schedules/best", params=self._rng.choice(self._asks))
        except httpx.HTTPError:
            self.failed += 1
            return
        self.seconds.append(time.monotonic() - due)
        self.failed += answer.status_code not in (200, 404)
