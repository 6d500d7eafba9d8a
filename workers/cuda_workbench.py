"""Measuring on a GPU: guarded operands in its memory, the check on both recipes, CUDA graphs over rotating copies.

The process that imports this owns the device alone. See docs/measuring.md for the protocol.
"""

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from search_space.workload import Workload
from tuner.outcome import Outcome
from workers import bench, cuda_bench, vendor_cuda
from workers.bench import Rejected
from workers.check import Acceptance
from workers.cpu_workbench import ArtifactKernel, Operands
from workers.cuda_operands import Copies, copies_wanted, damaged
from workers.gpu_sensors import Log, Sensors
from workers.inputs import RECIPES, make_inputs
from workers.reference import reference

Json = Mapping[str, object]
Handler = Callable[[Json, bytes], tuple[Json, bytes]]

# A throttled sample is taken again at most so often; then the card is what it is, and the time is marked.
_THROTTLE_RETRIES = 2
# Exit status of a child whose context is gone: nothing works in that process any more.
CONTEXT_LOST = 70
# Share of the device's memory that operands of tasks beside the open one may take: with their references in float64
# a task takes up to sixteen times as much.
_KEPT_SHARE = 1 / 40


def prepare_process() -> None:
    """Real float32 products; no gradients. Makes no context: a spare child must not disturb the one at work."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)


def kept_bytes() -> int:
    return int(torch.cuda.get_device_properties(0).total_memory * _KEPT_SHARE)


class CudaKernel(Protocol):
    exact: bool  # held to the error bound; the vendor's kernel is not refused for how it rounds

    def bind(self, operands: Operands) -> Callable[[], Any]:
        """Everything that is done once, ahead of the calls."""


class VendorKernel:
    exact = False

    def __init__(self, name: str, bind: vendor_cuda.Bind) -> None:
        self.name = name
        self._bind = bind

    def bind(self, operands: Operands) -> Callable[[], Any]:
        return self._bind(operands.inputs, operands.outputs)


class CudaBed:
    """One task's operands: rotating copies of the random inputs, one of the adversarial ones, and their references."""

    def __init__(self, workload: Workload, sensors: Sensors) -> None:
        self._workload = workload
        self._sensors = sensors
        self.log = Log()
        self.note: str | None = None  # what the last kernel that is not held to the bound did
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        truths = [self._truth(recipe) for recipe in RECIPES]
        free, _ = torch.cuda.mem_get_info()
        count = copies_wanted(workload.footprint_bytes(), l2, free)
        self.cold = count * workload.footprint_bytes() >= 2 * l2
        self._outputs = [(o.name, Copies(o, count)) for o in workload.outputs()]
        self._inputs: list[tuple[str, Copies]] = []
        random, adversarial = (
            self._sets(recipe, copies, *truth)
            for recipe, copies, truth in zip(RECIPES, (count, 1), truths, strict=True)
        )
        self.sets, self._checked = random, (random[0], adversarial[0])
        self._graphs: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()
        self._bound: weakref.WeakKeyDictionary[Any, list[Callable[[], Any]]] = weakref.WeakKeyDictionary()
        torch.cuda.synchronize()

    def _truth(self, recipe: str) -> tuple[dict[str, Any], Acceptance, Mapping[str, Any]]:
        made = make_inputs(self._workload, recipe, "cuda")
        right = reference(self._workload, made)
        return made, Acceptance(self._workload, right), right.outputs

    def _sets(
        self, recipe: str, count: int, made: dict[str, Any], acceptance: Acceptance, right: Mapping[str, Any]
    ) -> list[Operands]:
        """`count` input sets and a last one that no kernel ever sees, to compare them with."""
        inputs = []
        for operand in self._workload.inputs():
            copies = Copies(operand, count + 1)
            copies.fill(made.pop(operand.name))
            inputs.append(copies)
            self._inputs.append((operand.name, copies))
        outputs = [copies for _, copies in self._outputs]
        return [
            Operands(recipe, tuple(c.tensor(i) for c in inputs), tuple(c.tensor(i) for c in outputs), right, acceptance)
            for i in range(count)
        ]

    def check(self, kernel: CudaKernel) -> float:
        self.note, self.log = None, Log()
        return max(self._check_on(kernel, operands) for operands in self._checked)

    def _check_on(self, kernel: CudaKernel, operands: Operands) -> float:
        """Twice: the second launch finds in its workspace what the first one left there."""
        call = kernel.bind(operands)
        return max(self._run_and_judge(kernel, call, operands) for _ in range(2))

    def _run_and_judge(self, kernel: CudaKernel, call: Callable[[], Any], operands: Operands) -> float:
        for _, copies in self._outputs:
            copies.poison(0)
        result = call()
        if result is not None:
            operands.outputs[0].copy_(result)
        self.verify_guards()
        names = [o.name for o in self._workload.outputs()]
        outputs = dict(zip(names, operands.outputs, strict=True))
        if not kernel.exact:  # the vendor gives no second output (the log-sum-exp): it is judged by its first
            outputs |= {name: operands.right[name] for name in names[1:]}
        found = operands.acceptance.check(outputs)
        if not found.ok:
            message = f"{operands.recipe} inputs: {found.message}"
            if kernel.exact:
                raise Rejected(Outcome.WRONG_ANSWER, message)
            self.note = message
        return float(found.max_rel_err)

    def time(self, kernel: CudaKernel, calls: int, warm_up: bool = False) -> float:
        """By events round a graph that passes over all copies as often as it takes for `calls` calls."""
        passes = -(-calls // len(self.sets))
        known = self._graphs.setdefault(kernel, {})
        if passes not in known:
            known[passes] = cuda_bench.capture(self._calls(kernel), passes)
            warm_up = True  # a graph's first replay uploads it
        if warm_up:
            cuda_bench.replay_secs(known[passes])
        return calls * self._sample(known[passes])

    def _sample(self, graph: Any) -> float:
        for retry in range(_THROTTLE_RETRIES + 1):
            secs = cuda_bench.replay_secs(graph)
            reading = self._sensors.read()
            if not reading.throttled:
                break
            self.log.repeated += retry < _THROTTLE_RETRIES
        self.log.spoilt += reading.throttled
        self.log.readings.append(reading)
        return secs

    def _calls(self, kernel: CudaKernel) -> list[Callable[[], Any]]:
        """Bound to every copy once; kept as long as the kernel, since its graphs use the workspaces."""
        if kernel not in self._bound:
            self._bound[kernel] = [kernel.bind(operands) for operands in self.sets]
        return self._bound[kernel]

    def verify_guards(self) -> None:
        said = damaged(self._outputs, self._inputs)
        if said:
            raise Rejected(Outcome.WRONG_ANSWER, "; ".join(said))


class CudaWorkbench:
    def __init__(self, workload: Workload, sensors: Sensors) -> None:
        self._workload = workload
        self.bed = CudaBed(workload, sensors)
        self._vendor: VendorKernel | None = None

    def load(self, name: str, artifact: bytes, entry: Json | None) -> ArtifactKernel:
        return ArtifactKernel(artifact)

    def vendor(self, entry: Json) -> tuple[str, VendorKernel]:
        """The fastest of the vendor's kernels, found at the first call. ValueError where none does the workload."""
        if self._vendor is None:
            kernels = [VendorKernel(n, bind) for n, bind in vendor_cuda.vendor_kernels(self._workload).items()]
            self._vendor = kernels[0] if len(kernels) == 1 else self._fastest(kernels)
        return self._vendor.name, self._vendor

    def _fastest(self, kernels: list[VendorKernel]) -> VendorKernel:
        times: dict[float, VendorKernel] = {}
        refusals = []
        for kernel in kernels:
            if times and kernel.name == "math":
                break
            try:
                self.bed.check(kernel)
                calls, _ = bench.calls_per_batch(self.bed, kernel)
                times[min(bench.seconds_per_call(self.bed, kernel, calls) for _ in range(3))] = kernel
            except (RuntimeError, Rejected) as fault:
                if context_is_lost():
                    raise
                refusals.append(f"{kernel.name}: {str(fault).splitlines()[0][:200]}")
        if not times:
            raise ValueError(f"torch has no kernel for this workload ({'; '.join(refusals)})")
        return times[min(times)]

    def vendor_note(self) -> str | None:
        return self.bed.note

    def observed(self) -> Json:
        seen = self.bed.log.to_json()
        details = seen["details"]
        assert isinstance(details, dict)
        return {**seen, "details": {**details, "cold": self.bed.cold, "input_sets": len(self.bed.sets)}}

    def close(self) -> None:
        del self.bed
        torch.cuda.empty_cache()


def context_is_lost() -> bool:
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def ending_with_the_context(handler: Handler) -> Handler:
    """A fault that stays with the context (an illegal access) ends this process, and the supervisor starts another:
    whatever ran here next would be blamed for it. An allocation that does not fit is the candidate's alone."""

    def handle(message: Json, payload: bytes) -> tuple[Json, bytes]:
        try:
            return handler(message, payload)
        except torch.OutOfMemoryError as fault:
            torch.cuda.empty_cache()
            if message["do"] == "open":
                raise
            return {"rejected": Outcome.OUT_OF_MEMORY.value, "error": str(fault).splitlines()[0]}, b""
        except Exception as fault:
            if context_is_lost():
                os.write(2, f"{type(fault).__name__}: {str(fault).splitlines()[0]}\n".encode())
                os._exit(CONTEXT_LOST)
            raise

    return handle
