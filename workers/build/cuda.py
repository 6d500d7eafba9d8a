"""From a lowered module to a cubin: TVM makes CUDA source, nvcc compiles it. Needs no GPU.

TVM would call the compiler itself only where it finds a CUDA driver; called here, a build machine needs none, and the
compiler's own report of registers, spills and shared memory is read instead of trusted.
"""

import functools
import importlib.metadata
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_space.lowered import Lowered
from search_space.target import Target
from tilewright.runtime.cuda import CUBIN
from workers.build.build import Backend, Compiled, first_message
from workers.build.result import BuildError, BuildToolMissing

FLAGS = ("-O3", "-std=c++17", "--use_fast_math", "--expt-relaxed-constexpr", "-w", "-Xptxas=-v")
_PARAMETER = re.compile(r"(\w+)\s*$")
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\)\s*\{')
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


@dataclass(frozen=True)
class KernelReport:
    """What ptxas says of one kernel; static shared memory only."""

    symbol: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Cubin:
    """`launch` is the sketch's description, with each kernel's parameters in the cubin's order."""

    code: bytes
    source: str
    launch: Mapping[str, Any]
    reports: tuple[KernelReport, ...]
    serialised: bool  # ptxas had to serialise wgmma (warnings C7510 and the like)


@functools.cache
def find_nvcc() -> str:
    """Path of nvcc: on PATH, or where the pip package nvidia-cuda-nvcc puts it. Raises BuildToolMissing."""
    if (found := shutil.which("nvcc")) is not None:
        return found
    site = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    for candidate in sorted(site.glob("*/bin/nvcc")):
        return str(candidate)
    raise BuildToolMissing(
        "no CUDA compiler: nvcc is neither on PATH nor installed by pip; "
        "pip install nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 "
        "nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85"
    )


@functools.cache
def compiler_version() -> str:
    """``nvcc 13.0.88``."""
    out = subprocess.run([find_nvcc(), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", out)
    return f"nvcc {found.group(1) if found else 'unknown'}"


def cuda_source(lowered: Lowered, target: Target) -> str:
    """The CUDA C++ that TVM makes of every PrimFunc of the module."""
    try:
        import tvm
    except ImportError as error:
        raise BuildToolMissing(f"TVM cannot be imported ({error}): pip install 'tilewright[service]'") from error
    _compile_ourselves()
    device = tvm.target.Target({"kind": "cuda", "arch": target.arch})
    try:
        with device:
            executable = tvm.compile(lowered.module, target=device, tir_pipeline="tirx")
    except MemoryError:
        raise
    except Exception as error:
        raise BuildError(first_message(error)) from error
    return str(executable.mod.imports[0].inspect_source())


@functools.cache
def _compile_ourselves() -> None:
    """Where a CUDA driver is installed TVM would compile the source too, by a compiler and flags of its own choice: it
    is handed bytes that are never loaded."""
    import tvm.support.nvcc  # noqa: F401  registers TVM's own callback, which must not come after ours
    import tvm_ffi

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", lambda _code: b"unused", override=True)


def with_parameters(launch: Mapping[str, Any], source: str) -> dict[str, Any]:
    """`launch` with each kernel's `parameters`: TVM chooses their order, so it is read from the source."""
    order = {symbol: _parameters(text) for symbol, text in _KERNEL.findall(source)}
    kernels = []
    for kernel in launch["kernels"]:
        names = order[kernel["symbol"]]
        unknown = [n for n in names if n not in kernel["arguments"]]
        if unknown:
            raise ValueError(f"kernel {kernel['symbol']} takes {unknown}, which its launch description does not give")
        kept = {n: kernel["arguments"][n] for n in names}
        kernels.append({**kernel, "arguments": kept, "parameters": names})
    return {**launch, "kernels": kernels}


def _parameters(text: str) -> list[str]:
    names = []
    for declaration in text.split(","):
        found = _PARAMETER.search(declaration)
        if found is not None:
            names.append(found.group(1))
    return names


def compile_source(source: str, arch: str, timeout_s: float = 60.0) -> tuple[bytes, str]:
    """(cubin, ptxas's report). Raises BuildToolMissing or BuildError."""
    nvcc = find_nvcc()
    number = arch.removeprefix("sm_")
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        path.write_text(source)
        machine = f"-gencode=arch=compute_{number},code=sm_{number}"
        command = [nvcc, "--cubin", machine, *FLAGS, "-o", str(out), str(path)]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise BuildError(f"nvcc did not end within {timeout_s:g} s") from None
        report = ran.stdout + ran.stderr
        if ran.returncode:
            raise BuildError(f"nvcc ended with {ran.returncode}: {report[-2000:]}")
        return out.read_bytes(), report


def read_report(report: str) -> tuple[KernelReport, ...]:
    """Per kernel, from ptxas -v."""
    found = []
    for part in report.split("Compiling entry function")[1:]:
        entry = _ENTRY.search("Compiling entry function" + part)
        spill, used = _SPILL.search(part), _USED.search(part)
        if entry and spill and used:
            stack, stores, loads = (int(x) for x in spill.groups())
            shared = int(used.group(2) or 0)
            found.append(KernelReport(entry.group(1), int(used.group(1)), stores + loads, stack, shared))
    return tuple(found)


def build_cubin(lowered: Lowered, target: Target, timeout_s: float = 60.0) -> Cubin:
    """Raises BuildToolMissing or BuildError."""
    assert lowered.launch is not None, "a GPU sketch's lowering gives a launch description"
    source = cuda_source(lowered, target)
    launch = with_parameters(lowered.launch, source)
    code, report = compile_source(source, target.arch, timeout_s)
    serialised = bool(re.search(r"C75(10|14|15)|C7602|serializ", report))
    return Cubin(code, source, launch, read_report(report), serialised)


def compile_cuda(lowered: Lowered, target: Target) -> Compiled:
    """Raises BuildError when the kernel spills: such a kernel is never the fastest, and rarely what was meant."""
    built = build_cubin(lowered, target)
    spilled = [f"{r.symbol} ({r.spill_bytes} bytes)" for r in built.reports if r.spill_bytes]
    if spilled:
        raise BuildError(f"registers spill in {', '.join(spilled)}")
    report = [f"// {r.symbol}: {r.registers} registers, {r.stack_bytes} bytes of stack" for r in built.reports]
    return Compiled("cubin", {CUBIN: built.code}, built.launch, "\n".join([*report, built.source]))


def identity() -> Mapping[str, str]:
    """What compiled it, for the manifest and the cache key."""
    return {"tvm": importlib.metadata.version("apache-tvm"), "compiler": compiler_version(), "flags": " ".join(FLAGS)}


BACKEND = Backend(compile_cuda, identity)
