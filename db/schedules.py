"""Schedules: promoted with their history, and read back by id."""

import json
import uuid
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from db import events
from db.blobs import ArtifactStore
from db.leases import leased_task, working
from db.mapping import best_of, canonical, extents_of, family_of, target_of, workload_of
from db.sketch_versions import SketchVersion
from db.states import touch
from db.tables import JobRow, TaskRow
from db.tables_served import CURRENT, ScheduleRow
from search_space.candidate import Candidate
from search_space.environment import EnvironmentIdentity
from tuner.best import BestConfig
from tuner.ports import Lease
from tuner.task import Task
from tuner.views import Conflict, NotFound, ScheduleView


@dataclass(frozen=True)
class Promoted:
    """A winner with the bytes of its artifact; `schedule_id` and `measured_at` of one that was promoted elsewhere."""

    best: BestConfig
    artifact: bytes
    beaten: Candidate | None = None
    schedule_id: str | None = None
    measured_at: float | None = None


def promote(
    session: Session,
    artifacts: ArtifactStore,
    version: SketchVersion,
    lease: Lease,
    task_id: int,
    promoted: Promoted,
    now: float,
) -> str:
    """Write the schedule, always; make it the one served unless the present one of the same workload and identity is
    faster by its own final. So of two jobs for one shape the faster wins, in whichever order they end (O25). `beaten`
    stood in the very final that this one won: it gives way, whatever a calmer hour once measured for it."""
    best = promoted.best
    job = working(session, lease)
    task = leased_task(session, job, task_id)
    if task.target is None:
        raise Conflict(f"task {task_id} is not bound to a target: bind it before promoting")
    touch(job, now)
    artifacts.put(session, best.artifact, promoted.artifact, now)
    present = _current(session, task.workload_key, best.identity.key)
    takes_over = (
        present is None
        or _is_stale(present, version)
        or best.latency_s <= present.latency_s
        or BestConfig.from_json(json.loads(present.best)).candidate == promoted.beaten
    )
    if takes_over and present is not None:
        present.is_current = False
        session.flush()  # the unique index allows one current row, also within the transaction
    row = _new_row(job, task, promoted, now, takes_over)
    session.add(row)
    task.best = row.best
    task.schedule_id = row.id
    events.append(session, job, "best", _body(task, row, best), now)
    return row.id


def _current(session: Session, workload_key: str, identity_key: str) -> ScheduleRow | None:
    return session.scalars(
        select(ScheduleRow)
        .where(ScheduleRow.workload_key == workload_key, ScheduleRow.identity_key == identity_key, CURRENT)
        .with_for_update()
    ).one_or_none()


def _is_stale(row: ScheduleRow, version: SketchVersion) -> bool:
    return version(row.sketch) not in (None, row.sketch_version)


def _new_row(job: JobRow, task: TaskRow, promoted: Promoted, now: float, is_current: bool) -> ScheduleRow:
    best = promoted.best
    workload = workload_of(task.workload)
    assert task.target is not None
    return ScheduleRow(
        id=promoted.schedule_id or f"sch_{uuid.uuid4().hex[:20]}",
        job_id=job.id,
        task_id=task.id,
        workload=task.workload,
        workload_key=task.workload_key,
        family_key=family_of(workload),
        extents=json.dumps(extents_of(workload)),
        target=task.target,
        target_kind=target_of(task.target).kind,
        identity_key=best.identity.key,
        sketch=best.candidate.sketch,
        sketch_version=best.candidate.version,
        best=canonical(best.to_json()),
        latency_s=best.latency_s,
        artifact=best.artifact,
        measured_at=now if promoted.measured_at is None else promoted.measured_at,
        promoted_at=now,
        is_current=is_current,
    )


def _body(task: TaskRow, row: ScheduleRow, best: BestConfig) -> dict[str, object]:
    return {
        "task": task.position,
        "schedule_id": row.id,
        "latency_s": best.latency_s,
        "speedup_vs_baseline": best.speedup,
        "served": best.served,
    }


def incumbent(
    session: Session, version: SketchVersion, task: Task, identity: EnvironmentIdentity
) -> tuple[Candidate, str] | None:
    row = session.scalars(
        select(ScheduleRow).where(
            ScheduleRow.workload_key == task.workload.key, ScheduleRow.identity_key == identity.key, CURRENT
        )
    ).one_or_none()
    if row is None or _is_stale(row, version):
        return None
    return best_of(row.best).candidate, row.artifact


class StoredSchedule(Protocol):
    """The columns that a view needs: a mapped row or a plain one."""

    @property
    def id(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def workload(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def best(self) -> str: ...
    @property
    def measured_at(self) -> float: ...


def view_of(row: StoredSchedule) -> ScheduleView:
    return ScheduleView(
        id=row.id,
        job_id=row.job_id,
        workload=workload_of(row.workload),
        target=target_of(row.target),
        best=best_of(row.best),
        measured_at=row.measured_at,
    )


def schedule(session: Session, schedule_id: str) -> ScheduleView:
    row = session.get(ScheduleRow, schedule_id)
    if row is None:
        raise NotFound(f"no schedule {schedule_id}")
    return view_of(row)


def of_job(session: Session, job_id: str) -> list[ScheduleView]:
    """Every promotion of the job, by task, then by time."""
    query = (
        select(ScheduleRow)
        .join(TaskRow, TaskRow.id == ScheduleRow.task_id)
        .where(ScheduleRow.job_id == job_id)
        .order_by(TaskRow.position, ScheduleRow.promoted_at, ScheduleRow.id)
    )
    rows = session.scalars(query).all()
    if not rows and session.get(JobRow, job_id) is None:
        raise NotFound(f"no job {job_id}")
    return [view_of(row) for row in rows]
