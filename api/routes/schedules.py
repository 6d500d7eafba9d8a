"""The answer to "what is the best schedule for this shape on this target?"."""

import re
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from api import examples, neighbours, present, problems, schemas
from api.errors import ApiError, Stale, Untuned
from api.openapi import json_body, lookup_parameters, problem_responses
from api.routes.parameters import Cursor, Limit, ScheduleId
from api.service import OnlyQuery, Service, Svc, query_once
from api.strict_json import Body, parse
from api.workload_query import Asked, boolean
from api.workload_query import parse as parse_query
from search_space import fields
from search_space.errors import InvalidField
from search_space.target import TargetQuery
from search_space.workload import parse_workload

router = APIRouter(prefix="/v1", tags=["schedules"])

_ARTIFACT: dict[int, dict[str, Any]] = {
    200: {
        "description": "The built kernel, as `tilewright.load` reads it",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {"ETag": {"schema": {"type": "string"}, "description": "the content hash"}},
    },
    304: {"description": "The copy named in If-None-Match is the same"},
}

Found = schemas.BestSchedule | schemas.NearestSchedule


@router.get(
    "/schedules/best",
    response_model=Found,
    responses=problem_responses(404),
    openapi_extra=lookup_parameters(),
)
def best(svc: Svc, request: Request) -> Response:
    """The schedule of exactly this workload on this target; 404 `untuned` or `stale` where there is none."""
    query = query_once(request, None)
    _, found = _find(svc, parse_query(query), boolean(query, "nearest"))
    # Written here, in the thread that read it: this route is asked most, and validating the model again would take it
    # through the pool a second time.
    return Response(found.model_dump_json(), media_type="application/json")


@router.post(
    "/schedules/best:batch",
    response_model=schemas.Batch,
    responses=problem_responses(413, 415),
    openapi_extra=json_body("BatchRequest", batch=examples.BATCH_REQUEST),
    dependencies=[Depends(OnlyQuery())],
)
def batch(svc: Svc, raw: Body) -> schemas.Batch:
    """Many lookups at once. A workload that cannot be right is an answer of its own, and does not spoil the others."""
    body = parse(raw, svc.settings.max_json_depth)
    if not isinstance(body, Mapping):
        raise InvalidField("", "the body must be an object")
    fields.only(body, frozenset({"workloads", "target", "nearest"}))
    workloads = body.get("workloads")
    limit = svc.settings.max_batch
    if not isinstance(workloads, list) or not 1 <= len(workloads) <= limit:
        raise InvalidField("workloads", f"must be a list of 1 to {limit} workloads")
    target, nearest = TargetQuery.from_json(body.get("target")), fields.boolean(body, "nearest")
    return schemas.Batch(items=[_batch_item(svc, i, w, target, nearest) for i, w in enumerate(workloads)])


@router.get(
    "/schedules/{schedule_id}",
    response_model=schemas.ScheduleDetail,
    responses=problem_responses(404),
    dependencies=[Depends(OnlyQuery())],
)
def schedule(svc: Svc, schedule_id: ScheduleId) -> schemas.ScheduleDetail:
    """One schedule, current or past."""
    return present.schedule_detail(svc.store.schedule(schedule_id))


@router.get(
    "/schedules/{schedule_id}/artifact",
    response_class=Response,
    responses=problem_responses(404, own=_ARTIFACT),
    dependencies=[Depends(OnlyQuery())],
)
def artifact(svc: Svc, schedule_id: ScheduleId, request: Request) -> Response:
    """The artifact's bytes, addressed by their content: they never change."""
    digest = svc.store.schedule(schedule_id).best.artifact
    headers = {"ETag": f'"{digest}"', "Cache-Control": "private, max-age=31536000, immutable"}
    if digest in re.findall(r'"([^"]*)"', request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    headers["Content-Disposition"] = f'attachment; filename="{schedule_id}.tilewright"'
    return Response(svc.store.artifact(digest), media_type="application/octet-stream", headers=headers)


@router.get(
    "/lookups",
    response_model=schemas.PageOf[schemas.LookupItem],
    responses=problem_responses(),
    tags=["service"],
    dependencies=[Depends(OnlyQuery("limit", "cursor"))],
)
def lookups(svc: Svc, limit: Limit = 50, cursor: Cursor = None) -> schemas.PageOf[schemas.LookupItem]:
    """How often each workload was asked for, and whether anything was there to answer with."""
    svc.counter.flush()
    page = svc.store.lookups(limit, cursor)
    return schemas.PageOf(items=[present.lookup(item) for item in page.items], next_cursor=page.next_cursor)


@router.get(
    "/stale",
    response_model=schemas.PageOf[schemas.StaleItem],
    responses=problem_responses(),
    dependencies=[Depends(OnlyQuery("limit", "cursor"))],
)
def stale(svc: Svc, limit: Limit = 50, cursor: Cursor = None) -> schemas.PageOf[schemas.StaleItem]:
    """What is served, but was tuned for another driver, compiler or sketch version than today's: tune it again."""
    page = svc.store.stale(limit, cursor)
    return schemas.PageOf(items=[present.stale(item) for item in page.items], next_cursor=page.next_cursor)


def _find(svc: Service, asked: Asked, nearest: bool) -> tuple[str, Found]:
    """(status, answer), counted; Untuned or Stale when there is no answer."""
    lookup = svc.store.best(asked.workload, asked.target, asked.filters)
    if lookup.status == "exact" and lookup.schedule is not None:
        svc.counter.count(asked.workload, asked.target, "exact")
        return "exact", present.best_schedule(lookup.schedule)
    if nearest:
        found = svc.store.nearest(asked.workload, asked.target, neighbours.CANDIDATES)
        answer = neighbours.nearest_legal(asked.workload, found)
        if answer is not None:
            svc.counter.count(asked.workload, asked.target, "nearest")
            return "nearest", answer
    stale = lookup.status == "stale"
    svc.counter.count(asked.workload, asked.target, "stale" if stale else "missed")
    shape, wanted = asked.workload.to_json(), asked.target.to_json()
    if stale:
        detail = f"the schedule known for this workload differs in {', '.join(lookup.differs)}: tune it again"
        raise Stale(detail, workload=shape, target=wanted, differs=list(lookup.differs))
    raise Untuned("this workload was never tuned for this target", workload=shape, target=wanted)


def _batch_item(svc: Service, index: int, item: object, target: TargetQuery, nearest: bool) -> schemas.BatchItem:
    try:
        workload = parse_workload(item)
    except InvalidField as fault:
        return _without_answer("refused", fault.under(f"workloads.{index}"))
    try:
        status, result = _find(svc, Asked(workload, target, {}), nearest)
    except (Stale, Untuned) as fault:
        return _without_answer("stale" if isinstance(fault, Stale) else "missed", fault)
    return schemas.BatchItem(status=status, result=result, problem=None)  # type: ignore[arg-type]


def _without_answer(status: str, fault: ApiError | InvalidField) -> schemas.BatchItem:
    problem = schemas.Problem.model_validate(problems.problem_of(fault))
    return schemas.BatchItem(status=status, result=None, problem=problem)  # type: ignore[arg-type]
