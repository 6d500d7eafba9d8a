"""The TVM target that a CPU schedule is compiled for."""

import tvm

from search_space.target import Target

# Without these LLVM turns the transposing copies of a packed operand into scatters and gathers, which are
# slower than plain scalar moves on every x86 core that has them (2 to 5 % of a 1024^3 GEMM where measured).
_X86_TUNING = ("+prefer-no-scatter", "+prefer-no-gather")
# LLVM splits 512-bit vectors on some Intel cores unless told otherwise.
_X86_WIDE = ("-prefer-256-bit",)


def llvm_target(target: Target) -> tvm.target.Target:
    """TVM's `llvm` target for `target` (kind cpu): its processor name and its core count.

    The processor name alone decides the instruction set, so a schedule can be compiled (not run) for another machine.
    """
    if target.kind != "cpu":
        raise ValueError(f"not a CPU target: {target.kind}")
    spec: dict[str, object] = {"kind": "llvm", "num-cores": target.cores, "opt-level": 3}
    if target.arch:
        spec["mcpu"] = target.arch
    if is_x86(target):
        spec["mattr"] = [*_X86_TUNING, *(_X86_WIDE if target.vector_bits >= 512 else ())]
    return tvm.target.Target(spec)


def is_x86(target: Target) -> bool:
    """Whether the target runs x86-64 code: told by its instruction sets, which ARM names differently."""
    return not any(f in ("neon", "asimd", "sve") for f in target.features)
