"""CPU targets: TVM's LLVM code generator, and the system's C compiler to link its object with our shim."""

import functools
import hashlib
import json
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search_space.lowered import Lowered
from search_space.target import Target
from tilewright.runtime.cpu import LIBRARY
from workers.build.build import Backend, Compiled, first_message
from workers.build.result import BuildError, BuildToolMissing
from workers.host import kernel_names

SHIM = Path(__file__).with_name("shim.c")
_COMPILERS = ("cc", "gcc", "clang")
_CFLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=default")
_LINK_TIMEOUT_S = 60
# The generated checks of shapes and strides are left out: the loader has looked at every operand by then.
_PASS_CONFIG = {"tirx.disable_assert": True}


def compile_cpu(lowered: Lowered, target: Target) -> Compiled:
    compiler = find_compiler()
    module = _compile(lowered, target)
    with tempfile.TemporaryDirectory(prefix="tilewright-build-") as folder:
        objects = Path(folder)
        module.write_to_file(str(objects / "kernel.o"))
        (objects / "shim.o").write_bytes(_shim_object(compiler))
        # The folder's name is left out of the output: equal programs give equal libraries.
        command = [compiler, "-shared", "-s", "-Wl,-Bsymbolic", "-o", LIBRARY, "kernel.o", "shim.o", "-lm", "-lpthread"]
        _run(command, objects)
        library = (objects / LIBRARY).read_bytes()
    # LLVM may use whatever the processor's name implies: a machine without it is refused when the artifact is loaded.
    launch = {"machine": platform.machine(), "instructions": kernel_names(target.features)}
    return Compiled("cpu-library", {LIBRARY: library}, launch, str(module.inspect_source("s")))


def hopeless(assembly: str, target: Target) -> str | None:
    """Why a program's hot loop shows that it cannot be fast; None where it may be."""
    from search_space.lowering.assembly import inspect_assembly

    return inspect_assembly(assembly, target.vector_bits).hopeless


def _compile(lowered: Lowered, target: Target) -> Any:
    try:
        import tvm

        from search_space.lowering.target import llvm_target
    except ImportError as error:
        raise BuildToolMissing(f"TVM cannot be imported ({error}): pip install 'tilewright[service]'") from error
    try:
        with tvm.transform.PassContext(opt_level=3, config=_PASS_CONFIG):
            return tvm.compile(any_alignment(lowered.module), target=llvm_target(target)).mod
    except MemoryError:
        raise
    except Exception as error:
        raise BuildError(first_message(error)) from error


def any_alignment(module: Any) -> Any:
    """The same program, promised no more than element alignment of its operands.

    TVM assumes 64 bytes, which PyTorch's allocator keeps but a slice of a tensor or a numpy array does not; an aligned
    vector load of such an address is a segmentation fault. Vector instructions that take any alignment cost nothing
    more on an aligned address. Buffers inside the program keep their alignment.
    """
    import tvm

    itemsizes = [tvm.DataType(str(p.dtype)).bits // 8 for f in module.functions.values() for p in f.params]
    graph = json.loads(tvm.ir.save_json(module))
    nodes = graph["nodes"]
    for node in nodes:
        if node["type"] != "tirx.PrimFunc":
            continue
        for parameter in nodes[node["data"]["params"]]["data"]:
            kind = nodes[nodes[parameter]["data"]["ty"]]
            if kind["type"] == "tirx.BufferType":
                kind["data"]["data_alignment"] = min(itemsizes)
    return tvm.ir.load_json(json.dumps(graph))


def find_compiler() -> str:
    """Path of a C compiler; BuildToolMissing naming the package to install otherwise."""
    for name in _COMPILERS:
        if path := shutil.which(name):
            return path
    message = f"no C compiler on PATH (looked for {', '.join(_COMPILERS)}): install one, e.g. apt-get install gcc"
    raise BuildToolMissing(message)


@functools.cache
def _shim_object(compiler: str) -> bytes:
    """The shim, compiled once in this process."""
    with tempfile.TemporaryDirectory(prefix="tilewright-shim-") as folder:
        shutil.copy(SHIM, folder)
        _run([compiler, *_CFLAGS, "-c", SHIM.name, "-o", "shim.o"], Path(folder))
        return (Path(folder) / "shim.o").read_bytes()


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_LINK_TIMEOUT_S, check=False)
    except OSError as error:
        raise BuildToolMissing(f"{command[0]} cannot be run: {error}") from error
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} took longer than {_LINK_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        telling = next((x for x in lines if "error" in x or "cannot" in x), lines[0] if lines else "no message")
        raise (
            BuildToolMissing(f"{command[0]}: {telling}: install libc6-dev")
            if "crt" in telling
            else BuildError(f"{Path(command[0]).name}: {telling}")
        )


@functools.cache
def identity() -> Mapping[str, str]:
    """The compilers, as in an EnvironmentIdentity, and the shim."""
    import tvm

    return {
        "tvm": str(tvm.__version__),
        "compiler": f"LLVM {tvm.target.codegen.llvm_version_major()}",
        "shim": hashlib.sha256(SHIM.read_bytes()).hexdigest()[:16],
    }


BACKEND = Backend(compile_cpu, identity, hopeless)
