"""What a job that no runner has taken is waiting for, told from the devices that runners report. Pure."""

from collections.abc import Sequence

from tuner.job import JobState
from tuner.views import DeviceView, JobView

WAITING = (JobState.QUEUED, JobState.INTERRUPTED)


def waits(job: JobView) -> bool:
    return job.state in WAITING


def reason(job: JobView, devices: Sequence[DeviceView], now: float) -> str | None:
    """None for a job that is not waiting, or only for its turn."""
    if not waits(job):
        return None
    alive = [d for d in devices if d.alive]
    if not alive:
        return "no runner is there: `tilewright serve` starts one, or `python -m api.runner` beside a service"
    bound = [t.target for t in job.tasks if t.target is not None and t.stop_reason is None]
    matching = [d for d in devices if job.spec.target.matches(d.target) and all(b == d.target for b in bound)]
    there = [d for d in matching if d.alive]
    if not there:
        return f"no device of {_asked(job)} is there now{_last_seen(matching, now)}; there are {_list(alive)}"
    if not any(d.healthy for d in there):
        aside = "; ".join(sorted({f"{d.device_id}: {d.detail or 'not healthy'}" for d in there}))
        return f"every device of {_asked(job)} is set aside ({aside})"
    return None


def _asked(job: JobView) -> str:
    bound = next((t.target for t in job.tasks if t.target is not None), None)
    if bound is not None:
        return f"{bound.kind} {bound.arch} ({bound.model}, {bound.cores} cores), on which the job began,"
    asked = job.spec.target.to_json()
    return " ".join(str(v) for v in asked.values())


def _last_seen(gone: Sequence[DeviceView], now: float) -> str:
    if not gone:
        return ""
    last = max(gone, key=lambda d: d.last_seen_at)
    return f" ({last.device_id} was last seen {max(0.0, now - last.last_seen_at):.0f} s ago)"


def _list(devices: Sequence[DeviceView]) -> str:
    return ", ".join(sorted({f"{d.target.kind} {d.target.arch}" for d in devices}))
