"""The service itself: who works for it, what it can tune, whether it is well."""

import logging
from collections.abc import Sequence

from fastapi import APIRouter, Depends, Response

from api import present, service_schemas
from api.admission import known_targets
from api.openapi import problem_responses
from api.service import OnlyQuery, Service, Svc
from search_space import registry
from tuner.views import DeviceView

log = logging.getLogger(__name__)

OPEN: dict[str, object] = {"security": []}  # answered without a key too: an orchestrator has none

router = APIRouter(tags=["service"], dependencies=[Depends(OnlyQuery())])


@router.get("/v1/workers", response_model=service_schemas.Workers, responses=problem_responses())
def workers(svc: Svc) -> service_schemas.Workers:
    """The devices that runners report, alive or lost."""
    return service_schemas.Workers(items=[present.worker(d) for d in svc.store.devices(svc.settings.now())])


@router.get("/v1/targets", response_model=service_schemas.Targets, responses=problem_responses())
def targets(svc: Svc) -> service_schemas.Targets:
    """What a job may name as its target, and the structures the search has for each."""
    devices = svc.store.devices(svc.settings.now())
    items = []
    for target in known_targets(devices, svc.settings):
        sketches = [s for s in registry.all_sketches().values() if s.target_kind == target.kind]
        mine = [d for d in devices if d.target == target]
        items.append(
            service_schemas.TargetItem(
                target=present.target(target),
                devices=len(mine),
                alive=sum(d.alive for d in mine),
                ops=sorted({s.op for s in sketches}),
                sketches=sorted(s.name for s in sketches),
            )
        )
    return service_schemas.Targets(items=items)


@router.get("/health/live", response_model=service_schemas.Health, openapi_extra=OPEN)
async def live() -> service_schemas.Health:
    """The process answers."""
    return service_schemas.Health(status="live")


@router.get(
    "/health/ready",
    response_model=service_schemas.Health,
    openapi_extra=OPEN,
    responses={
        503: {"model": service_schemas.Health, "description": "Something that jobs need is not there: see `checks`"}
    },
)
def ready(svc: Svc, response: Response) -> service_schemas.Health:
    """Whether a job submitted now would be worked on: the database, a runner, a healthy device."""
    checks = _checks(svc)
    well = all(check.ok for check in checks.values())
    response.status_code = 200 if well else 503
    return service_schemas.Health(status="ready" if well else "unavailable", checks=checks)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(svc: Svc) -> Response:
    """Counts and request latencies, for Prometheus."""
    svc.metrics.watchers.set(svc.hub.watchers)
    svc.counter.flush()
    return Response(svc.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _checks(svc: Service) -> dict[str, service_schemas.Check]:
    try:
        svc.store.ping()
        devices = svc.store.devices(svc.settings.now())
    except Exception:
        log.exception("the database is not ready")
        return {"database": service_schemas.Check(ok=False, detail="cannot be read; the service's log says why")}
    return {
        "database": service_schemas.Check(ok=True, detail="reachable, schema as expected"),
        "runner": _runner(devices),
        "devices": _devices(devices),
    }


def _runner(devices: Sequence[DeviceView]) -> service_schemas.Check:
    runners = {d.runner_id for d in devices if d.alive}
    lost = {d.runner_id for d in devices} - runners
    detail = f"{len(runners)} alive" + (f", {len(lost)} lost" if lost else "")
    return service_schemas.Check(ok=bool(runners), detail=detail)


def _devices(devices: Sequence[DeviceView]) -> service_schemas.Check:
    alive = [d for d in devices if d.alive]
    sick = [d for d in alive if not d.healthy]
    detail = f"{len(alive) - len(sick)} healthy"
    if sick:
        detail += f"; not healthy: {', '.join(f'{d.device_id} ({d.detail})' for d in sick)}"
    return service_schemas.Check(ok=len(alive) > len(sick), detail=detail)
