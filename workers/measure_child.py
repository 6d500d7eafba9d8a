"""The measuring child: owns the device, keeps the inputs and references of the tasks it was given, and does one thing
at a time. A candidate that crashes takes this process with it and nothing else.

Requests (`do`): open, baseline, measure, admit, time, self_test. A `workbench` is what differs between devices and the
script.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from search_space.registry import all_sketches  # noqa: F401  registers the ops
from search_space.workload import Workload, parse_workload
from tuner.outcome import Outcome
from tuner.peers import PEER_PREFIX
from tuner.ports import MeasurePolicy
from workers import bench, self_test
from workers.peers import PeerKernel

Json = Mapping[str, object]
Handler = Callable[[Json, bytes], tuple[Json, bytes]]

# Tasks kept ready beside the open one, so that a job that alternates between its tasks does not make inputs anew
# with every batch: by bytes of their operands, the open one apart. Two input sets with float64 references and error
# bounds make the memory really held about four times that.
KEPT_BYTES = 128 << 20


class Workbench(Protocol):
    """One task on one device: the bed, and what to run on it."""

    @property
    def bed(self) -> bench.Bed[Any]: ...

    def load(self, name: str, artifact: bytes, entry: Json | None) -> Any:
        """A candidate's kernel. Raises what the loader raises: an artifact that cannot run is a RUN_ERROR."""

    def vendor(self, entry: Json) -> tuple[str, Any]:
        """(library's name, its kernel)."""

    def vendor_note(self) -> str | None:
        """What a reader should know about the vendor's answer; None when there is nothing."""

    def observed(self) -> Json:
        """What was seen while the last kernel was timed: fields of an Observation, the device's own sensors."""

    def close(self) -> None:
        """Give the memory back."""


@dataclass(frozen=True)
class _Opened:
    workload: Workload
    workbench: Workbench


class MeasuringChild:
    def __init__(
        self,
        make: Callable[[Workload], Workbench],
        look: self_test.Look,
        kept_bytes: Callable[[], int] | None = None,
        peers: Sequence[str] = (),
    ) -> None:
        self._make = make
        self._look = look
        self._peers = frozenset(peers)  # what may be imported, whatever a request says
        self._kept_bytes = kept_bytes or (lambda: KEPT_BYTES)
        self._tasks: OrderedDict[str, _Opened] = OrderedDict()
        self._contestants: dict[str, Any] = {}
        self._actions: dict[str, Callable[[Json, bytes], Json]] = {
            "open": self._open,
            "baseline": self._baseline,
            "measure": self._measure,
            "admit": self._admit,
            "time": self._time,
            "self_test": lambda message, _: self._look(message).to_json(),
        }

    def __call__(self, message: Json, payload: bytes) -> tuple[Json, bytes]:
        try:
            return self._actions[str(message["do"])](message, payload), b""
        except bench.Rejected as fault:
            return {"rejected": fault.outcome.value, "error": str(fault)}, b""

    def _open(self, message: Json, payload: bytes) -> Json:
        workload = parse_workload(message["workload"])
        self._contestants.clear()
        if workload.key in self._tasks:
            self._tasks.move_to_end(workload.key)
            return {}
        self._shrink()
        self._tasks[workload.key] = _Opened(workload, self._make(workload))
        return {}

    def _shrink(self) -> None:
        while self._tasks and sum(t.workload.footprint_bytes() for t in self._tasks.values()) > self._kept_bytes():
            _, oldest = self._tasks.popitem(last=False)
            oldest.workbench.close()

    @property
    def _current(self) -> Workbench:
        return next(reversed(self._tasks.values())).workbench

    def _baseline(self, message: Json, payload: bytes) -> Json:
        name, kernel = self._current.vendor(_mapping(message["vendor"]))
        try:
            told = self._timed(kernel, message, best_latency_s=None)
        except bench.Rejected as fault:
            return {"name": name, "rejected": fault.outcome.value, "error": str(fault)}
        return {**told, "name": name, "note": self._current.vendor_note()}

    def _measure(self, message: Json, payload: bytes) -> Json:
        best = message["best_latency_s"]
        kernel = self._current.load(str(message["name"]), payload, _entry(message))
        return self._timed(kernel, message, None if best is None else float(str(best)))

    def _timed(self, kernel: Any, message: Json, best_latency_s: float | None) -> Json:
        policy = MeasurePolicy(**_mapping(message["policy"]))  # type: ignore[arg-type]
        timing = bench.measure(self._current.bed, kernel, policy, best_latency_s, time.monotonic)
        return {
            "run_secs": list(timing.run_secs),
            "calls": timing.calls,
            "max_rel_err": timing.max_rel_err,
            "raced_out": timing.raced_out,
            "seen": dict(self._current.observed()),
        }

    def _admit(self, message: Json, payload: bytes) -> Json:
        """Check a contestant of a final and keep it loaded; its inner calls come back."""
        if not message.get("load"):
            return {"unknown": True}
        kernel = self._contestant(message, payload)
        error = self._current.bed.check(kernel)
        calls, _ = bench.calls_per_batch(self._current.bed, kernel)
        return {"calls": calls, "max_rel_err": error}

    def _time(self, message: Json, payload: bytes) -> Json:
        name = str(message["name"])
        if name not in self._contestants and not message.get("load"):
            return {"unknown": True}
        kernel = self._contestant(message, payload)
        secs = self._current.bed.time(kernel, int(str(message["calls"])), bool(message["warm_up"]))
        self._current.bed.verify_guards()
        return {"secs": repr(secs)}  # as text: JSON has no NaN

    def _contestant(self, message: Json, payload: bytes) -> Any:
        name = str(message["name"])
        if name not in self._contestants or message.get("load"):
            if name.startswith(PEER_PREFIX):
                self._contestants[name] = self._peer(name.removeprefix(PEER_PREFIX))
            elif payload or message["entry"] is not None:
                self._contestants[name] = self._current.load(name, payload, _entry(message))
            else:
                self._contestants[name] = self._current.vendor(_mapping(message["vendor"]))[1]
        return self._contestants[name]

    def _peer(self, spec: str) -> PeerKernel:
        if spec not in self._peers:
            raise bench.Rejected(Outcome.BUILD_ERROR, f"{spec} is not a peer that this worker was started with")
        return PeerKernel(spec, next(reversed(self._tasks.values())).workload)


def _entry(message: Json) -> Json | None:
    entry = message["entry"]
    return None if entry is None else _mapping(entry)


def _mapping(value: object) -> Json:
    assert isinstance(value, Mapping)
    return value


def _names(arguments: Json) -> list[str]:
    peers = arguments.get("peers", [])
    assert isinstance(peers, list)
    return [str(p) for p in peers]


def cpu_child(arguments: Json) -> MeasuringChild:
    """Entry of the real child on a CPU; `cores` are the ones that the worker owns."""
    from workers.cpu_workbench import CpuWorkbench, prepare_process

    prepare_process(int(str(arguments["cores"])))
    return MeasuringChild(CpuWorkbench, self_test.on_cpu, peers=_names(arguments))


def cuda_child(arguments: Json) -> Handler:
    """Entry of the real child on the one GPU that its environment shows it; `uuid` names that for its sensors."""
    from workers.cuda_workbench import CudaWorkbench, ending_with_the_context, kept_bytes, prepare_process
    from workers.gpu_sensors import Sensors

    prepare_process()
    sensors = Sensors(str(arguments["uuid"]))
    made = MeasuringChild(
        lambda workload: CudaWorkbench(workload, sensors), self_test.on_cuda, kept_bytes, _names(arguments)
    )
    return ending_with_the_context(made)


def scripted_child(arguments: Json) -> MeasuringChild:
    """Entry of the child that does what an entry of the script tells it."""
    from workers.scripted import ScriptedWorkbench

    return MeasuringChild(ScriptedWorkbench, self_test.as_scripted)
