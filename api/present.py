"""From the store's read models to answers. Pure."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from api import schemas, service_schemas
from search_space.target import Target, TargetQuery
from search_space.workload import Workload
from tuner.best import BestConfig
from tuner.job import FINAL, JobState
from tuner.views import (
    DeviceView,
    JobView,
    LookupCount,
    ProgressPoint,
    ScheduleView,
    StaleView,
    TaskView,
    TrialView,
)


def finite(value: object) -> object:
    """`value` with every float that JSON cannot hold replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else instant(seconds)


def _interval(pair: tuple[float, float] | None) -> tuple[float, float] | None:
    return pair if pair is not None and all(map(math.isfinite, pair)) else None


def workload(value: Workload) -> schemas.WorkloadOut:
    return schemas.WorkloadOut.model_validate(value.to_json())


def target(value: Target) -> schemas.TargetOut:
    return schemas.TargetOut.model_validate(value.to_json())


def target_query(value: TargetQuery) -> schemas.TargetQueryOut:
    return schemas.TargetQueryOut.model_validate(value.to_json())


def tflops(value: Workload, latency_s: float | None) -> float | None:
    return value.flops() / latency_s / 1e12 if latency_s else None


def baseline(name: str | None, latency_s: float | None) -> schemas.Baseline | None:
    return None if name is None else schemas.Baseline(name=name, latency_s=latency_s)


def eta_s(job: JobView) -> float | None:
    """Seconds to go: trials left at the rate so far, or the time left where that ends it first."""
    if job.state in FINAL:
        return None
    limits = []
    if job.trials_done and job.elapsed_s > 0:
        limits.append(job.elapsed_s / job.trials_done * max(0, job.spec.max_trials - job.trials_done))
    if job.spec.max_seconds is not None and job.state is JobState.RUNNING:
        limits.append(max(0.0, job.spec.max_seconds - job.elapsed_s))
    return min(limits, default=None)


# The phases of a runner that are the search's own work; the others open, build, measure.
SEARCH_PHASES = ("propose", "fit", "store")


def search_overhead(job: JobView) -> float | None:
    """Share of the job's running time that proposing, learning and committing took; None before it ended."""
    if job.finished_at is None or job.elapsed_s <= 0:
        return None
    return sum(job.phase_seconds.get(phase, 0.0) for phase in SEARCH_PHASES) / job.elapsed_s


def _task_best(task: TaskView) -> schemas.TaskBest | None:
    best, latency = task.best, task.best_latency_s
    if best is None and latency is None:
        return None
    latency = best.latency_s if best else latency
    return schemas.TaskBest(
        latency_s=latency,
        tflops=tflops(task.workload, latency),
        speedup_vs_baseline=best.speedup if best else None,
        speedup_ci95=_interval(best.speedup_ci95) if best else None,
        roofline_fraction=best.roofline_fraction if best else None,
        promoted=best is not None,
        served=_served(best) if best else None,
    )


def _served(best: BestConfig) -> schemas.Served:
    return schemas.Served(kind="vendor" if best.served == "vendor" else "tilewright")


def _task(task: TaskView) -> schemas.JobTask:
    return schemas.JobTask(
        index=task.index,
        workload=workload(task.workload),
        weight=task.weight,
        trials=task.trials,
        target=target(task.target) if task.target else None,
        best=_task_best(task),
        baseline=baseline(task.baseline_name, task.baseline_latency_s),
        schedule_id=task.schedule_id,
        stop_reason=task.stop_reason,
    )


def _summary(job: JobView) -> dict[str, object]:
    spec = job.spec
    return {
        "id": job.id,
        "name": spec.name,
        "state": job.state,
        "stop_reason": job.stop_reason,
        "target": target_query(spec.target),
        "seed": spec.seed,
        "preset": spec.preset,
        "priority": spec.priority,
        "weight": spec.weight,
        "max_trials": spec.max_trials,
        "max_seconds": spec.max_seconds,
        "trials": {"done": job.trials_done, "ok": job.trials_ok, "failed_by": dict(job.failed_by)},
        "task_count": len(spec.tasks),
        "elapsed_s": job.elapsed_s,
        "search_overhead": search_overhead(job),
        "eta_s": eta_s(job),
        "created_at": instant(job.created_at),
        "started_at": _instant(job.started_at),
        "finished_at": _instant(job.finished_at),
        "error": {"code": job.error[0], "message": job.error[1]} if job.error else None,
    }


def job_summary(job: JobView) -> schemas.JobSummary:
    return schemas.JobSummary.model_validate(_summary(job))


def job(view: JobView, waiting_for: str | None = None) -> schemas.Job:
    return schemas.Job.model_validate(
        _summary(view)
        | {
            "tasks": [_task(t) for t in view.tasks],
            "phase_seconds": dict(view.phase_seconds),
            "last_event": view.last_event,
            "waiting_for": waiting_for,
        }
    )


def _trial(view: TrialView) -> dict[str, object]:
    return {
        "id": view.id,
        "number": view.ordinal,
        "task": view.task_index,
        "attempt": view.attempt,
        "sketch": view.candidate.sketch,
        "sketch_version": view.candidate.version,
        "knobs": view.candidate.knobs,
        "outcome": view.outcome,
        "latency_s": view.latency_s,
        "latency_ci95_s": _interval(view.ci95_s),
        "predicted_score": view.predicted_score,
        "error": view.error,
        "device": view.device_id or None,
        "started_at": _instant(view.started_at),
        "finished_at": _instant(view.finished_at),
    }


def trial(view: TrialView) -> schemas.Trial:
    return schemas.Trial.model_validate(_trial(view))


def trial_detail(view: TrialView, of: Workload, on: Target) -> schemas.TrialDetail:
    return schemas.TrialDetail.model_validate(_trial(view) | {"workload": workload(of), "target": target(on)})


def progress(task: TaskView, points: Iterable[ProgressPoint]) -> schemas.TaskProgress:
    return schemas.TaskProgress(
        task=task.index,
        baseline=baseline(task.baseline_name, task.baseline_latency_s),
        points=[
            schemas.ProgressItem(
                number=p.ordinal, at=instant(p.at), latency_s=p.latency_s, best_latency_s=p.best_latency_s
            )
            for p in points
        ],
    )


def schedule(view: ScheduleView, runnable: bool = True) -> schemas.Schedule:
    candidate = view.best.candidate
    return schemas.Schedule(
        id=view.id,
        workload=workload(view.workload),
        target=target(view.target),
        sketch=candidate.sketch,
        sketch_version=candidate.version,
        knobs=candidate.knobs,
        artifact=view.best.artifact,
        artifact_url=f"/v1/schedules/{view.id}/artifact" if runnable else None,
    )


def _detail(view: ScheduleView) -> dict[str, object]:
    best = view.best
    return {
        "schedule": schedule(view),
        "latency_s": best.latency_s,
        "latency_ci95_s": _interval(best.latency_ci95_s),
        "tflops": tflops(view.workload, best.latency_s),
        "bytes_per_s": view.workload.min_bytes() / best.latency_s if best.latency_s else None,
        "baseline": baseline(best.baseline_name, best.baseline_latency_s),
        "speedup_vs_baseline": best.speedup,
        "speedup_ci95": _interval(best.speedup_ci95),
        "roofline": {
            "bound": best.roofline_bound,
            "fraction": best.roofline_fraction,
            "ridge_flop_per_byte": best.ridge_flop_per_byte,
        },
        "served": _served(best),
        "max_rel_err": best.max_rel_err,
        "environment": best.identity.to_json(),
        "job_id": view.job_id,
        "measured_at": instant(view.measured_at),
    }


def schedule_detail(view: ScheduleView) -> schemas.ScheduleDetail:
    return schemas.ScheduleDetail.model_validate(_detail(view))


def best_schedule(view: ScheduleView) -> schemas.BestSchedule:
    return schemas.BestSchedule.model_validate(_detail(view))


def lookup(view: LookupCount) -> schemas.LookupItem:
    return schemas.LookupItem(
        workload=workload(view.workload),
        target=target_query(view.target),
        counts=dict(view.counts),
        last_at=instant(view.last_at),
    )


def worker(view: DeviceView) -> service_schemas.Worker:
    return service_schemas.Worker(
        runner_id=view.runner_id,
        device_id=view.device_id,
        target=target(view.target),
        alive=view.alive,
        healthy=view.healthy,
        detail=view.detail,
        last_seen_at=instant(view.last_seen_at),
    )


def stale(view: StaleView) -> schemas.StaleItem:
    return schemas.StaleItem(workload=workload(view.workload), target=target(view.target), differs=list(view.differs))
