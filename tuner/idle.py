"""How long a device stood idle while something that was built waited for it: from the stored intervals."""

from collections.abc import Iterable, Sequence

from tuner.measurement import Measurement

# Key in an observation's details: when the candidate was ready to be measured, in seconds since the epoch.
BUILT_AT = "built_at"

Span = tuple[float, float]


def idle_seconds(waits: Sequence[Span], busy: Sequence[Span]) -> float:
    """Seconds within some wait and within no busy span; spans are [start, end], may overlap and come in any order."""
    marks = sorted(
        [(at, kind, step) for kind, spans in (("wait", waits), ("busy", busy)) for s in spans for at, step in _ends(s)]
    )
    total, last, open_ = 0.0, 0.0, {"wait": 0, "busy": 0}
    for at, kind, step in marks:
        if open_["wait"] and not open_["busy"]:
            total += at - last
        open_[kind] += step
        last = at
    return total


def idle_share(measurements: Iterable[Measurement]) -> float | None:
    """Idle seconds over the wall time from the first built candidate to the last measurement's end. None when nothing
    tells both when it was built and when it was measured."""
    waits: list[Span] = []
    busy: list[Span] = []
    for m in measurements:
        built = m.observation.details.get(BUILT_AT)
        if m.interval is not None and isinstance(built, float | int):
            busy.append(m.interval)
            waits.append((float(built), max(float(built), m.interval[0])))
    if not busy:
        return None
    wall = max(end for _, end in busy) - min(start for start, _ in waits)
    return idle_seconds(waits, busy) / wall if wall > 0.0 else 0.0


def _ends(span: Span) -> tuple[tuple[float, int], tuple[float, int]]:
    return (span[0], 1), (span[1], -1)
