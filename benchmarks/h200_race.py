"""The parent of a race on the GPU: it starts children, watches for signs of life and writes every line to a log.

A child prints JSON lines: ``{"shape": i}`` when it takes a shape up, ``{"start": name}`` before each risky step,
``{"done": i}`` when a shape is finished, and whatever its benchmark reports. One that dies or falls silent is replaced;
what it was at (a candidate, or a whole shape where no candidate was) is left out from then on.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

PLAN = "H200_PLAN"  # the environment variable that tells a child its plan, as JSON


class Race:
    """`child`: module and arguments of the process that runs its plan's entries; `first_s` may pass until its first
    line (imports), `step_s` between two."""

    def __init__(
        self,
        seconds: float,
        log: TextIO,
        todo: list[int],
        child: Sequence[str],
        restarts: int = 12,
        first_s: float = 90.0,
        step_s: float = 20.0,
    ) -> None:
        self._command = [sys.executable, "-u", "-m", *child]
        self._log, self.todo, self._deadline = log, todo, time.time() + seconds
        self._restarts, self._first_s, self._step_s = restarts, first_s, step_s
        self.skip: list[tuple[int, str]] = []
        self.started, self.shape = "", -1

    def plan(self) -> Mapping[str, object]:
        """What the next child is told."""
        return {"indices": self.todo, "skip": self.skip}

    def heard(self, message: Mapping[str, Any]) -> None:
        """A line of the child that a benchmark wants to act on."""

    def run(self) -> None:
        for _ in range(self._restarts):
            if not self.todo or time.time() >= self._deadline:
                break
            ended = self._child()
            if ended in ("done", "time"):
                break
            self.write({"ended": ended, "shape": self.shape, "start": self.started})
            print("child", ended, "at", self.shape, self.started, flush=True)
            if self.started in ("", "final") and self.shape in self.todo:
                self.todo.remove(self.shape)
            else:
                self.skip.append((self.shape, self.started))
        self.write({"left": self.todo})
        print(f"{len(self.todo)} shapes left", flush=True)

    def write(self, message: Mapping[str, Any]) -> None:
        self._log.write(json.dumps({"t": round(time.time(), 2), **message}) + "\n")
        self._log.flush()

    def _child(self) -> str:
        environment = {**os.environ, PLAN: json.dumps(self.plan())}
        process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(process.stderr or []), daemon=True)
        reader.start()
        self.started, patience = "", self._first_s
        while True:
            try:
                line = lines.get(timeout=min(patience, max(0.1, self._deadline - time.time())))
            except queue.Empty:
                process.kill()
                process.wait()
                return "time" if time.time() >= self._deadline else "hang"
            if line is None:
                code = process.wait()
                reader.join(1.0)
                if code:
                    self.write({"stderr": "".join(errors)[-1500:]})
                    print("".join(errors)[-1500:], flush=True)
                return "done" if code == 0 else f"exit {code}"
            patience = self._step_s
            self._take(line)

    def _take(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return
        if not isinstance(message, dict):
            return
        self.shape = message.get("shape", self.shape)
        self.started = message.get("start", "" if "shape" in message else self.started)
        if "done" in message:
            self.todo.remove(message["done"])
        self.heard(message)
        if "start" not in message:
            self.write({"i": self.shape, **message})


def _pump(stream: TextIO, lines: "queue.Queue[str | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
