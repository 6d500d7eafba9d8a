"""A look at the generated assembly before anything runs: does the hot loop use the registers it was planned for?

Reads what `executable.mod.inspect_source("asm")` gives: GNU assembler, AT&T syntax on x86-64, or AArch64.
"""

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^(\.?L\w+):")
_X86_JUMP = re.compile(r"^\s+j[a-z]+\s+(\.?L\w+)")
_ARM_JUMP = re.compile(r"^\s+(?:b\.\w+|b|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#\d+,)\s+(\.?L\w+)")
_INSTRUCTION = re.compile(r"^\s+([a-z][\w.]*)")
_FMA = re.compile(r"^(v?fn?m(add|sub)|vdpbf16ps|fml[as]|bfdot|bfmmla)")
_STACK = re.compile(r"\(%r[sb]p[,)]|\[sp[,\]]|\[x29[,\]]")
_WIDTHS = ((re.compile(r"%zmm"), 512), (re.compile(r"%ymm"), 256), (re.compile(r"%xmm|\bv\d+\."), 128))
_SCALAR = re.compile(r"(ss|sd)$|^fn?m(add|sub)$")

# A tile that does not fit touches the stack more than once a multiply-add (8x2 and 6x3 on 16 registers: 1.2 and 1.3).
# Loops that are bound by memory, as decode attention, run well with half of that: addresses kept there cost nothing.
# A good tile shows 1.3 to 2 instructions a multiply-add, a dot product up to 2.5; scalarised vectors show 8 and more.
SPILLS_PER_FMA = 1.0
INSTRUCTIONS_PER_FMA = 6.0
# A loop with fewer multiply-adds is no register tile: it is not judged.
JUDGED_FROM = 6


@dataclass(frozen=True)
class AsmReport:
    """The innermost loop with the most multiply-adds (`fma` 0: there is none).

    `vector_bits` is the widest multiply-add in it (32 for a scalar one), `narrow` how many are narrower than the
    target's registers, `stack` how many instructions touch the stack. `hopeless` is why the candidate need not be
    run, or None: it spills more than SPILLS_PER_FMA, or needs more than INSTRUCTIONS_PER_FMA.
    """

    fma: int
    instructions: int
    vector_bits: int
    narrow: int
    stack: int
    hopeless: str | None

    @property
    def instructions_per_fma(self) -> float:
        return self.instructions / self.fma if self.fma else 0.0


def inspect_assembly(asm: str, vector_bits: int) -> AsmReport:
    """The report on `asm`, compiled for registers of `vector_bits`."""
    loops = [_report(body, vector_bits) for body in _innermost_loops(asm.splitlines())]
    return max(loops, key=lambda r: (r.fma, -r.instructions), default=_report([], vector_bits))


def _innermost_loops(lines: list[str]) -> list[list[str]]:
    """Instructions of every loop (a backward jump to a label) that holds no other loop."""
    labels = {m.group(1): at for at, line in enumerate(lines) if (m := _LABEL.match(line))}
    ranges: list[tuple[int, int]] = []
    for at, line in enumerate(lines):
        jump = _X86_JUMP.match(line) or _ARM_JUMP.match(line)
        if jump and labels.get(jump.group(1), at) < at:
            ranges.append((labels[jump.group(1)], at))
    inner = [r for r in ranges if not any(s != r and r[0] <= s[0] and s[1] <= r[1] for s in ranges)]
    return [[line for line in lines[first : last + 1] if _INSTRUCTION.match(line)] for first, last in inner]


def _report(body: list[str], vector_bits: int) -> AsmReport:
    names = [_INSTRUCTION.match(line) for line in body]
    products = [line for line, m in zip(body, names, strict=True) if m and _FMA.match(m.group(1))]
    widths = [_width(line) for line in products]
    stack = sum(bool(_STACK.search(line)) for line in body)
    fma = len(products)
    hopeless = None
    if fma >= JUDGED_FROM and stack > SPILLS_PER_FMA * fma:
        hopeless = f"the hot loop spills: {stack} stack references for {fma} multiply-adds"
    elif fma >= JUDGED_FROM and len(body) > INSTRUCTIONS_PER_FMA * fma:
        hopeless = f"the hot loop takes {len(body)} instructions for {fma} multiply-adds"
    narrow = sum(w < vector_bits for w in widths)
    return AsmReport(fma, len(body), max(widths, default=0), narrow, stack, hopeless)


def _width(line: str) -> int:
    name = _INSTRUCTION.match(line)
    if name and _SCALAR.search(name.group(1)):
        return 32
    return next((bits for pattern, bits in _WIDTHS if pattern.search(line)), 32)
