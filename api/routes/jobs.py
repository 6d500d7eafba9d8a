"""Submitting, listing and steering jobs."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Response

from api import examples, present, schemas, waiting
from api.admission import admit
from api.errors import ScopeRefused
from api.openapi import json_body, problem_responses
from api.routes.parameters import Cursor, JobId, Limit
from api.service import Needs, OnlyQuery, Service, Svc, Who
from api.strict_json import Body, parse
from tuner.access import Owner, Scope
from tuner.job import JobSpec, JobState
from tuner.views import JobView, Keep

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="a key of the caller's choice: the same key with the same body makes one job, however often sent",
    ),
]


KeepOrRemove = Annotated[Literal["keep", "remove"], Query(description="what becomes of them")]


def may_steer(svc: Svc, who: Who, job_id: JobId) -> None:
    """ScopeRefused unless the key is an admin's, or submitted this job itself."""
    if who.scope.allows(Scope.ADMIN):
        return
    if not who.scope.allows(Scope.SUBMIT) or svc.store.job(job_id).key_id != who.key_id:
        raise ScopeRefused("only the key that submitted a job, or an admin's, may steer it", needs=Scope.ADMIN)


@router.post(
    "",
    status_code=201,
    response_model=schemas.Job,
    responses=problem_responses(
        409, 413, 415, own={200: {"model": schemas.Job, "description": "The job made when this key was first sent"}}
    ),
    openapi_extra=json_body("JobRequest", tasks=examples.JOB_REQUEST, single=examples.SINGLE_JOB_REQUEST),
    dependencies=[Depends(OnlyQuery()), Depends(Needs(Scope.SUBMIT))],
)
def submit(svc: Svc, who: Who, raw: Body, response: Response, idempotency_key: IdempotencyKey = None) -> schemas.Job:
    """Submit a job. What no known device can do is refused here, with the field named."""
    body = parse(raw, svc.settings.max_json_depth)
    spec = JobSpec.from_json(body)
    assert isinstance(body, dict)
    now = svc.settings.now()
    admit(spec, body, svc.store.devices(now), svc.settings)
    job, created = svc.store.create_job(spec, idempotency_key, now, Owner(who.key_id, who.limits))
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return _shown(svc, job)


@router.get(
    "",
    response_model=schemas.PageOf[schemas.JobSummary],
    responses=problem_responses(),
    dependencies=[Depends(OnlyQuery("state", "limit", "cursor"))],
)
def jobs(
    svc: Svc, state: JobState | None = None, limit: Limit = 50, cursor: Cursor = None
) -> schemas.PageOf[schemas.JobSummary]:
    """Jobs, newest first."""
    page = svc.store.jobs(state, limit, cursor)
    return schemas.PageOf(items=[present.job_summary(j) for j in page.items], next_cursor=page.next_cursor)


@router.get(
    "/{job_id}", response_model=schemas.Job, responses=problem_responses(404), dependencies=[Depends(OnlyQuery())]
)
def job(svc: Svc, job_id: JobId) -> schemas.Job:
    """One job with its tasks, what each has found so far, and the counts of trials by outcome."""
    return _shown(svc, svc.store.job(job_id))


@router.delete(
    "/{job_id}",
    response_model=schemas.RemovedJob,
    responses=problem_responses(404, 409),
    dependencies=[Depends(OnlyQuery("winners", "records")), Depends(may_steer)],
)
def remove(
    svc: Svc, job_id: JobId, winners: KeepOrRemove = "keep", records: KeepOrRemove = "remove"
) -> schemas.RemovedJob:
    """Remove a job that has ended. Schedules that lookups serve stay unless `winners=remove`, and their job as a shell;
    what it measured goes unless `records=keep`; its events go in any case."""
    gone = svc.store.remove_job(job_id, Keep(winners == "keep", records == "keep"), svc.settings.now())
    return schemas.RemovedJob(id=gone.job_id, deleted=gone.deleted, trials=gone.trials, schedules=gone.schedules)


@router.post(
    "/{job_id}/cancel",
    response_model=schemas.Job,
    responses=problem_responses(404, 409),
    dependencies=[Depends(OnlyQuery()), Depends(may_steer)],
)
def cancel(svc: Svc, job_id: JobId) -> schemas.Job:
    """Stop a job for good; what it measured stays. Cancelling twice is no error; a completed or failed job is 409."""
    return _shown(svc, svc.store.cancel(job_id, svc.settings.now()))


@router.post(
    "/{job_id}/pause",
    response_model=schemas.Job,
    responses=problem_responses(404, 409),
    dependencies=[Depends(OnlyQuery()), Depends(may_steer)],
)
def pause(svc: Svc, job_id: JobId) -> schemas.Job:
    """Give the device back until the job is resumed."""
    return _shown(svc, svc.store.pause(job_id, svc.settings.now()))


@router.post(
    "/{job_id}/resume",
    response_model=schemas.Job,
    responses=problem_responses(404, 409),
    dependencies=[Depends(OnlyQuery()), Depends(may_steer)],
)
def resume(svc: Svc, job_id: JobId) -> schemas.Job:
    """Put a paused job back into the queue."""
    return _shown(svc, svc.store.resume(job_id, svc.settings.now()))


def _shown(svc: Service, job: JobView) -> schemas.Job:
    """The job, with what it waits for where no runner has taken it."""
    if not waiting.waits(job):
        return present.job(job)
    now = svc.settings.now()
    return present.job(job, waiting.reason(job, svc.store.devices(now), now))
