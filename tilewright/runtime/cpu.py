"""Loads the shared library of a CPU artifact and calls it: plain C, no TVM in the process."""

import ctypes
import os
import platform
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime import pool
from tilewright.runtime.artifact import Artifact, ForeignArtifact, damaged
from tilewright.runtime.kernel import Kernel, Packed, prepack_entries
from tilewright.runtime.operands import Addresses, Checker, OperandSpec

LIBRARY = "kernel.so"
_SYMBOL = "__tvm_ffi_"  # TVM's prefix of what it exports
_ALIGNMENT = 64  # of a packed operand, bytes: a cache line
_Workspace = tuple[ctypes.c_void_p, ctypes.c_void_p]
_workspace: list[_Workspace] = []  # of the first library loaded: its arena serves all (each thread has its own part)
_workspace_lock = threading.Lock()


class CpuKernel(Kernel):
    """A kernel in a shared library.

    By default it runs on as many threads as it was tuned for, and on no more than OpenMP's pool has at the time
    (torch.set_num_threads is honoured); `set_threads` fixes the number. A parallel region of several Python threads at
    once is right: each call has its own tasks and its own workspace.
    """

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self._library = _open(artifact)
        self._main = self._library.tilewright_main
        self._main.argtypes = (ctypes.c_void_p, ctypes.c_int)
        self._invoke = self._library.tilewright_invoke
        self._invoke.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
        self._packing = {str(p["operand"]): (str(p["symbol"]), int(p["nbytes"])) for p in prepack_entries(artifact)}
        self._in = Addresses(self.inputs, [self._checker(spec) for spec in self.inputs])
        self._out = Addresses(self.outputs, [Checker(spec) for spec in self.outputs])
        self._count = len(self.inputs) + len(self.outputs)
        self._array = ctypes.c_void_p * self._count
        target = artifact.manifest["target"]
        tuned_for = target.get("cores") if isinstance(target, dict) else None
        self._configure(min(int(tuned_for or pool.cores()), pool.cores()), follow_pool=True)

    def set_threads(self, threads: int) -> None:
        """Run parallel loops on exactly `threads` threads (of those the pool can give)."""
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self._configure(threads, follow_pool=False)

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        if len(inputs) != len(self.inputs):
            raise TypeError(_count("inputs", self.inputs, len(inputs)))
        addresses = self._in(inputs)
        if out is not None:
            outputs, more = self._given(out, addresses)
        else:
            like = inputs[0] if not isinstance(inputs[0], Packed) else inputs[-1]
            outputs, more = self._out.make(like)
        self._ran(self._main(self._array(*addresses, *more), self._count))
        return outputs[0] if len(outputs) == 1 else outputs

    def prepack(self, value: Any, operand: str | None = None) -> Packed:
        name = operand if operand is not None else next(iter(self._packing), "")
        if name not in self._packing or (operand is None and len(self._packing) > 1):
            wanted = ", ".join(self._packing) or "none"
            raise ValueError(f"operand: packed ahead are {wanted}; got {operand!r}")
        symbol, nbytes = self._packing[name]
        spec = next(s for s in self.inputs if s.name == name)
        owner = np.empty(nbytes + _ALIGNMENT, np.uint8)
        address = -(-owner.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        operands = (ctypes.c_void_p * 2)(Checker(spec)(value), address)
        function = ctypes.cast(getattr(self._library, _SYMBOL + symbol), ctypes.c_void_p)
        self._ran(self._invoke(function, operands, 2))
        return Packed(name, self.digest, address, nbytes, owner)

    def launcher(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        if len(inputs) != len(self.inputs):
            raise TypeError(_count("inputs", self.inputs, len(inputs)))
        if len(outputs) != len(self.outputs):
            raise TypeError(_count("outputs", self.outputs, len(outputs)))
        addresses = [*self._in(inputs), *self._out(outputs)]
        bound = self._array(*addresses)
        kept = (tuple(inputs), tuple(outputs))
        main, count, ran = self._main, self._count, self._ran

        def launch(_keep: object = kept) -> None:
            if status := main(bound, count):
                ran(status)

        return launch

    def _checker(self, spec: OperandSpec) -> Callable[[Any], int]:
        if spec.name not in self._packing:
            return Checker(spec)

        def packed(value: Any) -> int:
            if not isinstance(value, Packed):
                raise TypeError(f"{spec.name}: must be packed ahead: pass kernel.prepack({spec.name})")
            if value.kernel != self.digest or value.operand != spec.name:
                raise ValueError(f"{spec.name}: was packed for another kernel or operand: pack it with this one")
            return value.address

        return packed

    def _given(self, out: Any, inputs: list[int]) -> tuple[tuple[Any, ...], list[int]]:
        outputs = tuple(out) if isinstance(out, tuple | list) else (out,)
        if len(outputs) != len(self.outputs):
            raise TypeError(_count("out", self.outputs, len(outputs)))
        addresses = self._out(outputs)
        spans = [(first, first + s.nbytes, s.name) for first, s in zip(inputs, self.inputs)]
        for first, value, spec in zip(addresses, outputs, self.outputs):
            if isinstance(value, np.ndarray) and not value.flags.writeable:
                raise ValueError(f"{spec.name}: out is read-only")
            for start, end, name in spans:
                if first < end and start < first + spec.nbytes:
                    raise ValueError(f"{spec.name}: out overlaps {name}")
            spans.append((first, first + spec.nbytes, spec.name))
        return outputs, addresses

    def _configure(self, threads: int, follow_pool: bool) -> None:
        shared = pool.shared_pool()
        cast = ctypes.c_void_p
        count = ctypes.cast(shared.count, cast) if follow_pool and shared.count is not None else None
        self._library.tilewright_configure(ctypes.cast(shared.parallel, cast), count, ctypes.c_int(threads))

    def _ran(self, status: int) -> None:
        if status == 0:
            return
        if status == -1:
            raise MemoryError("the kernel could not get its workspace")
        raise RuntimeError(f"the kernel takes more operands than its library can pass (status {status})")


def _count(what: str, specs: Sequence[OperandSpec], got: int) -> str:
    return f"{what}: expected {len(specs)} ({', '.join(s.name for s in specs)}), got {got}"


def _open(artifact: Artifact) -> ctypes.CDLL:
    data = artifact.files.get(LIBRARY)
    if data is None:
        raise damaged(f"{LIBRARY} is missing")
    launch = artifact.manifest.get("launch")
    machine = launch.get("machine") if isinstance(launch, dict) else None
    if machine not in (None, platform.machine()):
        raise ForeignArtifact(f"the artifact was built for {machine}, this machine is {platform.machine()}")
    _check_features(launch)
    library = _dlopen(data)
    with _workspace_lock:
        if not _workspace:
            mine: _Workspace = (ctypes.c_void_p(), ctypes.c_void_p())
            library.tilewright_workspace(ctypes.byref(mine[0]), ctypes.byref(mine[1]))
            _workspace.append(mine)
        library.tilewright_use_workspace(*_workspace[0])
    return library


def _check_features(launch: object) -> None:
    """A missing instruction set is an error here, not a SIGILL later."""
    wanted = launch.get("instructions", []) if isinstance(launch, dict) else []
    have = _cpu_flags()
    missing = [w for w in wanted if have and w not in have]
    if missing:
        raise ForeignArtifact(f"the artifact needs {', '.join(missing)}, which this processor lacks: tune here")


def _cpu_flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.lower().startswith(("flags", "features")):
                    return frozenset(line.split(":", 1)[1].split())
    except OSError:
        return frozenset()
    return frozenset()


def _dlopen(data: bytes) -> ctypes.CDLL:
    """Through a file of this user's alone, removed once mapped; from memory where files may not be executed."""
    fd, path = tempfile.mkstemp(suffix=".so", prefix="tilewright-")
    try:
        with open(fd, "wb") as file:
            file.write(data)
        return ctypes.CDLL(path)
    except OSError as error:
        return _dlopen_memory(data, error)
    finally:
        os.unlink(path)


def _dlopen_memory(data: bytes, first: OSError) -> ctypes.CDLL:
    try:
        # Kept open: the C library knows a loaded library by its path, and a number used again would name the old one.
        fd = os.memfd_create("tilewright-kernel")
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        return ctypes.CDLL(f"/proc/self/fd/{fd}")
    except (AttributeError, OSError):
        raise ForeignArtifact(f"the kernel's library cannot be loaded: {first}") from None
