"""The users of the chaos run: they submit jobs, cancel and pause some, and watch some to their end; what the service
acknowledged to them goes to a ledger of theirs."""

import contextlib
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from benchmarks.chaos_ledger import Ledger
from benchmarks.chaos_world import World
from tilewright.client import ApiError, Client, JsonObject, ServerEvent, Unreachable

T = TypeVar("T")
FINAL = ("completed", "failed", "cancelled")


class Users:
    """Keep `open_jobs` open until `stop`, or until `total` were submitted."""

    def __init__(self, world: World, rng: random.Random, arches: list[str], open_jobs: int, total: int | None) -> None:
        self._world, self._rng, self._arches = world, rng, arches
        self._open_jobs, self._total = open_jobs, total
        self._ledger = Ledger(world.ledgers, "users")
        self._stop = threading.Event()
        self._watchers: list[threading.Thread] = []
        self.jobs: list[str] = []
        self._thread = threading.Thread(target=self._run, name="users", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No further job; what is open goes on."""
        self._stop.set()
        self._thread.join(120)

    def _run(self) -> None:
        with self._world.client() as client:
            while not self._stop.is_set() and (self._total is None or len(self.jobs) < self._total):
                states = self._states(client)
                if states is not None and sum(s not in FINAL for s in states) < self._open_jobs:
                    self._submit(client)
                self._stop.wait(0.5)

    def _states(self, client: Client) -> list[str] | None:
        try:
            return [str(j["state"]) for j in client.pages("/v1/jobs", {"limit": 100})]
        except (ApiError, Unreachable):
            return None

    def _submit(self, client: Client) -> None:
        """One job, by one idempotency key however often it must be sent until it is acknowledged."""
        rng, key = self._rng, uuid.uuid4().hex
        shapes = [[rng.randrange(16, 512, 8) for _ in range(3)] for _ in range(rng.randint(1, 4))]
        tasks = [{"workload": {"op": "gemm", "m": m, "n": n, "k": k, "dtype": "float32"}} for m, n, k in shapes]
        target = {"kind": "cpu", "arch": rng.choice(self._arches)}
        body = {"tasks": tasks, "target": target, "max_trials": rng.randint(24, 80), "seed": rng.randrange(1000)}
        job = self._until_answered(lambda: client.submit(body, key))
        if job is None:
            return
        self._ledger.write("submit", job=job["id"], key=key)
        self.jobs.append(str(job["id"]))
        lot = rng.random()
        if lot < 0.5:
            self._watch(str(job["id"]))
        elif lot < 0.6:
            self._later(str(job["id"]), rng.uniform(2, 15), ["cancel"])
        elif lot < 0.75:
            self._later(str(job["id"]), rng.uniform(2, 15), ["pause", "resume"])

    def _until_answered(self, call: Callable[[], T]) -> T | None:
        while not self._stop.is_set():
            try:
                return call()
            except Unreachable:
                time.sleep(0.3)
            except ApiError as fault:
                if fault.status < 500 and fault.code != "target":
                    return None
                time.sleep(0.3)
        return None

    def _later(self, job: str, after_s: float, actions: list[str]) -> None:
        def act() -> None:
            with self._world.client() as client:
                for action in actions:
                    time.sleep(after_s)
                    answer = self._act(client, job, action)
                    if action == "cancel" and answer is not None:
                        self._ledger.write("cancel", job=job, state="cancelled")

        self._go(act, f"user-{job}")

    def _act(self, client: Client, job: str, action: str) -> JsonObject | None:
        """None where the job had ended before (409)."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                return client.act(job, action)
            except Unreachable:
                time.sleep(0.3)
            except ApiError as fault:
                if fault.status < 500:
                    return None
                time.sleep(0.3)
        raise RuntimeError(f"{action} of {job} was not answered within 120 s")

    def _watch(self, job: str) -> None:
        def follow() -> None:
            seen: list[int] = []
            with self._world.client() as client:
                while not self._ended(client, job, seen):
                    time.sleep(0.3)
            self._ledger.write("watched", job=job, sequences=seen)

        self._go(follow, f"watch-{job}")

    @staticmethod
    def _ended(client: Client, job: str, seen: list[int]) -> bool:
        """Follow from the last event on; whether the stream came to its end."""
        last: ServerEvent | None = None
        try:
            for last in client.events(job, seen[-1] if seen else 0):
                seen.append(last.sequence)
            return client.job(job)["state"] in FINAL
        except (Unreachable, ApiError):
            return False

    def _go(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        self._watchers.append(thread)

    def settle(self, limit_s: float) -> list[str]:
        """Wait for the end of every job and of every watcher; the jobs that did not end."""
        end = time.monotonic() + limit_s
        left = list(self.jobs)
        with self._world.client() as client:
            while left and time.monotonic() < end:
                with contextlib.suppress(ApiError, Unreachable):
                    left = [j for j in left if client.job(j)["state"] not in FINAL]
                time.sleep(0.5)
        for thread in self._watchers:
            thread.join(max(0.1, min(30.0, end - time.monotonic())))
        return left
