"""Pages, and the fragments that the script swaps in while a job runs: one rendering for both."""

import dataclasses
import functools
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from api import present, waiting
from api.dashboard import assets, sign_in, words
from api.problems import Row, set_error_page
from api.routes.parameters import Cursor, JobId, TaskIndex
from api.service import Service, Svc
from tuner.job import FINAL, JobState
from tuner.outcome import Outcome
from tuner.views import JobView, NotFound

router = APIRouter(include_in_schema=False)

PAGE_SIZE = 25
JOBS_PAGE = 30

Outcomes = Annotated[str, Query(pattern="^[A-Z_]{0,20}$")]


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(assets.HERE / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("seconds", "rate", "duration", "percent", "ratio", "ago", "knobs", "workload", "target"):
        environment.filters[name] = getattr(words, name)
    environment.globals.update(asset=assets.url, outcome_words=words.OUTCOME_WORDS, stop_words=words.STOP_WORDS)
    return environment


def _page(template: str, code: int = 200, **context: Any) -> HTMLResponse:
    return HTMLResponse(_environment().get_template(template).render(**context), code)


def _now(svc: Service) -> datetime:
    return present.instant(svc.settings.now())


def _state(text: str) -> JobState | None:
    return JobState(text) if text in set(JobState) else None


def _jobs_context(svc: Service, state: JobState | None, cursor: str | None) -> dict[str, Any]:
    page = svc.store.jobs(state, JOBS_PAGE, cursor)
    return {
        "jobs": [present.job(j).model_dump(mode="python") for j in page.items],
        "next_cursor": page.next_cursor,
        "first_page": cursor is None,
        "state": state.value if state else "",
        "states": [s.value for s in JobState],
        "devices": [dataclasses.asdict(d) for d in svc.store.devices(svc.settings.now())],
        "now": _now(svc),
        "signed": svc.settings.is_keyed,
    }


@router.get("/")
def jobs(svc: Svc, state: str = "", cursor: Cursor = None) -> HTMLResponse:
    return _page("jobs.html", **_jobs_context(svc, _state(state), cursor))


@router.get("/fragments/jobs")
def jobs_fragment(svc: Svc, state: str = "", cursor: Cursor = None) -> HTMLResponse:
    return _page("_jobs.html", **_jobs_context(svc, _state(state), cursor))


def _job_context(svc: Service, view: JobView) -> dict[str, Any]:
    devices = svc.store.devices(svc.settings.now())
    waiting_for = waiting.reason(view, devices, svc.settings.now())
    job = present.job(view, waiting_for).model_dump(mode="python")
    failed = sorted(job["trials"]["failed_by"].items(), key=lambda item: -item[1])
    return {
        "job": job,
        "failed": failed,
        "bound": next((t["target"] for t in job["tasks"] if t["target"]), None),
        "final": view.state in FINAL,
        "can_pause": view.state in (JobState.QUEUED, JobState.RUNNING, JobState.INTERRUPTED),
        "can_resume": view.state is JobState.PAUSED,
        "devices_alive": any(d.alive and d.healthy for d in devices),
        "now": _now(svc),
        "signed": svc.settings.is_keyed,
    }


def _trials_context(svc: Service, view: JobView, task: int | None, outcome: str, cursor: str | None) -> dict[str, Any]:
    wanted = Outcome(outcome) if outcome in set(Outcome) else None
    if task is not None and task >= len(view.tasks):
        raise NotFound(f"no task {task} in job {view.id}")
    page = svc.store.trials(view.id, task, wanted, PAGE_SIZE, cursor, newest_first=True)
    return {
        "trials": [present.trial(t).model_dump(mode="python") for t in page.items],
        "next_cursor": page.next_cursor,
        "first_page": cursor is None,
        "task": task,
        "outcome": wanted.value if wanted else "",
        "task_names": [words.workload(t.workload.to_json()) for t in view.tasks],
        "outcomes": [o.value for o in Outcome],
    }


@router.get("/jobs/{job_id}")
def job(svc: Svc, job_id: JobId) -> HTMLResponse:
    view = svc.store.job(job_id)
    return _page("job.html", **_job_context(svc, view), **_trials_context(svc, view, None, "", None))


@router.get("/fragments/jobs/{job_id}")
def job_fragment(svc: Svc, job_id: JobId) -> HTMLResponse:
    return _page("_job.html", **_job_context(svc, svc.store.job(job_id)))


@router.get("/fragments/jobs/{job_id}/trials")
def trials_fragment(
    svc: Svc, job_id: JobId, task: TaskIndex = None, outcome: Outcomes = "", cursor: Cursor = None
) -> HTMLResponse:
    view = svc.store.job(job_id)
    return _page("_trials.html", job={"id": job_id}, **_trials_context(svc, view, task, outcome, cursor))


@router.get("/static/{name}")
def static(name: str, request: Request) -> Response:
    path = assets.files().get(name)
    if path is None:
        raise NotFound(f"no file {name[:100]}")
    headers = {"Cache-Control": assets.FOREVER, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(assets.compressed(path), media_type=assets.media_type(path), headers=headers)
    return Response(path.read_bytes(), media_type=assets.media_type(path), headers=headers)


def _error_page(row: Row, detail: str, signed: bool) -> HTMLResponse:
    return _page("error.html", row.status, title=row.title, status=row.status, detail=detail, signed=signed)


def install(app: FastAPI) -> None:
    app.include_router(router)
    sign_in.install(app, _page)
    set_error_page(app, _error_page)
