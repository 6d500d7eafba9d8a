"""Submitting, listing and steering jobs."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Response

from api import examples, present, schemas, waiting
from api.admission import admit
from api.openapi import json_body, problem_responses
from api.routes.parameters import Cursor, JobId, Limit
from api.service import OnlyQuery, Service, Svc
from api.strict_json import Body, parse
from tuner.job import JobSpec, JobState
from tuner.views import JobView

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


@router.post(
    "",
    status_code=201,
    response_model=schemas.Job,
    responses=problem_responses(
        409, 413, 415, own={200: {"model": schemas.Job, "description": "The job made when this key was first sent"}}
    ),
    openapi_extra=json_body("JobRequest", tasks=examples.JOB_REQUEST, single=examples.SINGLE_JOB_REQUEST),
    dependencies=[Depends(OnlyQuery())],
)
def submit(svc: Svc, raw: Body, response: Response, idempotency_key: IdempotencyKey = None) -> schemas.Job:
    """Submit a job. What no known device can do is refused here, with the field named."""
    body = parse(raw, svc.settings.max_json_depth)
    spec = JobSpec.from_json(body)
    assert isinstance(body, dict)
    now = svc.settings.now()
    admit(spec, body, svc.store.devices(now), svc.settings)
    job, created = svc.store.create_job(spec, idempotency_key, now)
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


@router.post(
    "/{job_id}/cancel",
    response_model=schemas.Job,
    responses=problem_responses(404, 409),
    dependencies=[Depends(OnlyQuery())],
)
def cancel(svc: Svc, job_id: JobId) -> schemas.Job:
    """Stop a job for good; what it measured stays. Cancelling twice is no error; a completed or failed job is 409."""
    return _shown(svc, svc.store.cancel(job_id, svc.settings.now()))


@router.post(
    "/{job_id}/pause",
    response_model=schemas.Job,
    responses=problem_responses(404, 409),
    dependencies=[Depends(OnlyQuery())],
)
def pause(svc: Svc, job_id: JobId) -> schemas.Job:
    """Give the device back until the job is resumed."""
    return _shown(svc, svc.store.pause(job_id, svc.settings.now()))


@router.post(
    "/{job_id}/resume",
    response_model=schemas.Job,
    responses=problem_responses(404, 409),
    dependencies=[Depends(OnlyQuery())],
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
