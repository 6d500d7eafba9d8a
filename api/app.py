"""The HTTP application. Loads no tvm, ray or torch: it writes jobs and reads results."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from api import dashboard, problems
from api.auth import KeyRing
from api.lookup_counter import LookupCounter
from api.metrics import Metrics
from api.openapi import DocumentBuilder
from api.routes import jobs, schedules, service, trials
from api.security import Door
from api.service import Service
from api.settings import ApiSettings
from api.sse import EventHub
from tuner.views import ServiceStore

log = logging.getLogger(__name__)

DESCRIPTION = (
    "Finds the fastest kernel for a shape on the machine it runs on, remembers it, and serves it. Errors are RFC 9457 "
    "problem documents with the field named; numbers that do not exist are null."
)


def create_app(store: ServiceStore, settings: ApiSettings | None = None) -> FastAPI:
    """The application over `store`. The caller checks the address it binds with `api.auth.check_binding`."""
    settings = settings or ApiSettings()
    metrics = Metrics(store, settings.now)
    ring = KeyRing(store, settings.keys, settings.now)
    shared = Service(store, settings, EventHub(store, settings), LookupCounter(store, settings.now), metrics, ring)
    app = FastAPI(
        title="tilewright",
        version=_version(),
        description=DESCRIPTION,
        docs_url=None,  # the bundled pages load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.service = shared
    problems.install(app)
    for module in (jobs, trials, schedules, service):
        app.include_router(module.router)
    dashboard.install(app)
    app.add_middleware(Door, settings=settings, metrics=metrics, ring=ring)
    app.openapi = DocumentBuilder(app, settings.is_keyed)  # type: ignore[method-assign]
    return app


def _version() -> str:
    try:
        return version("tilewright")
    except PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    shared: Service = app.state.service
    chores = [asyncio.create_task(chore(shared)) for chore in (_flush_lookups, _interrupt_expired, _prune)]
    try:
        yield
    finally:
        for chore in chores:
            chore.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await chore
        await run_in_threadpool(shared.counter.flush)


async def _flush_lookups(shared: Service) -> None:
    while True:
        await asyncio.sleep(shared.settings.lookup_flush_s)
        try:
            await run_in_threadpool(shared.counter.flush)
        except Exception:
            log.exception("lookup counts could not be stored; trying again")


async def _interrupt_expired(shared: Service) -> None:
    """A job whose runner is gone must not look running for ever, also where no runner is left to notice."""
    while True:
        await asyncio.sleep(shared.settings.interrupt_expired_s)
        try:
            await run_in_threadpool(shared.store.interrupt_expired)
        except Exception:
            log.exception("jobs of dead runners could not be marked; trying again")


async def _prune(shared: Service) -> None:
    """Remove jobs that ended longer ago than they are kept, a few at a time so that no request waits long."""
    settings = shared.settings
    if settings.keep_jobs_s is None:
        return
    while True:
        now = settings.now()
        try:
            gone = await run_in_threadpool(shared.store.prune, now - settings.keep_jobs_s, settings.keep, 5, now)
        except Exception:
            log.exception("old jobs could not be pruned; trying again")
            gone = []
        for removed in gone:
            log.info(
                "job %s: pruned with %d trials and %d schedules", removed.job_id, removed.trials, removed.schedules
            )
        await asyncio.sleep(0.1 if gone else settings.prune_s)
