"""What a job has measured: trials, the curve of the best, and the live events."""

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.concurrency import run_in_threadpool
from pydantic.json_schema import SkipJsonSchema
from sse_starlette import EventSourceResponse

from api import present, schemas
from api.openapi import problem_responses
from api.routes.parameters import Cursor, JobId, Limit, TaskIndex, TrialId
from api.service import OnlyQuery, Svc
from search_space.errors import InvalidField
from search_space.fields import INT64_MAX
from tuner.job import FINAL
from tuner.outcome import Outcome
from tuner.views import JobView

router = APIRouter(prefix="/v1", tags=["trials"])

# A job may hold thousands of tasks; a chart cannot show more lines than this.
MAX_CURVES = 32

_STREAM: dict[int, dict[str, Any]] = {
    200: {
        "description": "Events with `id` (the sequence), `event` (job, trial, best, model or device) and JSON `data`; "
        "comments as heartbeats. The stream ends when the job has ended and everything was sent.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The job has ended and there is nothing after Last-Event-ID: do not reconnect"},
}


@router.get(
    "/jobs/{job_id}/trials",
    response_model=schemas.PageOf[schemas.Trial],
    responses=problem_responses(404),
    dependencies=[Depends(OnlyQuery("task", "outcome", "limit", "cursor", "order"))],
)
def trials(
    svc: Svc,
    job_id: JobId,
    task: TaskIndex = None,
    outcome: Outcome | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    order: Literal["asc", "desc"] = "asc",
) -> schemas.PageOf[schemas.Trial]:
    """The committed trials of a job, of one task or one outcome where asked."""
    if task is not None:
        _check_task(svc.store.job(job_id), task)
    page = svc.store.trials(job_id, task, outcome, limit, cursor, order == "desc")
    return schemas.PageOf(items=[present.trial(t) for t in page.items], next_cursor=page.next_cursor)


@router.get(
    "/trials/{trial_id}",
    response_model=schemas.TrialDetail,
    responses=problem_responses(404),
    dependencies=[Depends(OnlyQuery())],
)
def trial(svc: Svc, trial_id: TrialId) -> schemas.TrialDetail:
    """One trial with its workload and target: what `tilewright replay` builds again."""
    return present.trial_detail(*svc.store.trial(trial_id))


@router.get(
    "/jobs/{job_id}/progress",
    response_model=schemas.Progress,
    responses=problem_responses(404),
    dependencies=[Depends(OnlyQuery("task", "points"))],
)
def progress(
    svc: Svc,
    job_id: JobId,
    task: TaskIndex = None,
    points: Annotated[int, Query(ge=2, le=5000, description="most points of each task")] = 500,
) -> schemas.Progress:
    """The best so far over the trials, task by task (of the first 32 unless one is named)."""
    job = svc.store.job(job_id)
    if task is not None:
        _check_task(job, task)
    shown = [t for t in job.tasks if task in (None, t.index)][:MAX_CURVES]
    return schemas.Progress(items=[present.progress(t, svc.store.progress(job_id, t.index, points)) for t in shown])


@router.get(
    "/jobs/{job_id}/schedules",
    response_model=schemas.PageOf[schemas.ScheduleDetail],
    responses=problem_responses(404),
    dependencies=[Depends(OnlyQuery())],
)
def schedules(svc: Svc, job_id: JobId) -> schemas.PageOf[schemas.ScheduleDetail]:
    """The winners that the job's finals promoted, all on one page."""
    found = svc.store.schedules_of_job(job_id)
    return schemas.PageOf(items=[present.schedule_detail(s) for s in found], next_cursor=None)


@router.get(
    "/jobs/{job_id}/events",
    response_class=EventSourceResponse,
    responses=problem_responses(404, 503, own=_STREAM),
    dependencies=[Depends(OnlyQuery("after"))],
)
async def events(
    svc: Svc,
    job_id: JobId,
    last_event_id: Annotated[
        str | SkipJsonSchema[None],
        Header(
            max_length=100, description="resume after this sequence", json_schema_extra={"pattern": "^[0-9]{1,18}$"}
        ),
    ] = None,
    after: Annotated[int, Query(ge=0, le=INT64_MAX, description="the same, for a first connection")] = 0,
) -> Response:
    """What happens in a job, live. Resumable: nothing is sent twice, nothing is left out."""
    start = after if last_event_id is None else _sequence(last_event_id)
    job = await run_in_threadpool(svc.store.job, job_id)
    svc.hub.check_free()
    if job.state in FINAL and start >= job.last_event:
        return Response(status_code=204)
    stream = svc.hub.watch(job_id, min(start, job.last_event))
    return EventSourceResponse(stream, ping=svc.settings.event_heartbeat_s)


def _sequence(text: str) -> int:
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or int(text) > INT64_MAX:
        raise InvalidField("Last-Event-ID", f"must be the id of an event, got {text!r}")
    return int(text)


def _check_task(job: JobView, task: int) -> None:
    if task >= len(job.tasks):
        raise InvalidField("task", f"the job has {len(job.tasks)} tasks, counted from 0")
