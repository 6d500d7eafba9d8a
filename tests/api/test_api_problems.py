"""One table of errors: every typed error has its row, and what has none tells the caller nothing of the cause."""

import importlib
import inspect
import sqlite3

import pytest
from api_world import new_client
from store_nouns import FakeClock

from api import errors, problems
from db.store import SqlStore
from tuner.ports import LeaseLost, MeasurerUnavailable, StoreUnavailable, TaskRefused
from tuner.views import NotFound

MODULES = ("api.errors", "db.errors", "search_space.errors", "tuner.views", "tuner.ports")
# Never cross the service's half of the store: a runner's own faults, and one raised before the service listens.
ELSEWHERE = {LeaseLost, MeasurerUnavailable, TaskRefused, errors.BindingRefused, errors.ApiError}


def typed_errors() -> list[type[Exception]]:
    found = []
    for name in MODULES:
        for _, cls in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if issubclass(cls, Exception) and cls.__module__ == name and cls not in ELSEWHERE:
                found.append(cls)
    return found


@pytest.mark.parametrize("cls", typed_errors(), ids=lambda cls: cls.__name__)
def test_every_typed_error_has_a_row_of_its_own(cls: type[Exception]) -> None:
    assert cls in problems.TABLE


def test_the_list_of_typed_errors_is_not_empty() -> None:
    assert len(typed_errors()) >= 15


def test_codes_are_unique_but_for_wrong_fields() -> None:
    codes = [row.code for row in problems.TABLE.values() if row.code != "invalid-field"]
    assert len(codes) == len(set(codes))


def test_the_nearest_class_decides() -> None:
    class Gone(NotFound):
        pass

    assert problems.row_of(Gone("x")).status == 404
    assert problems.row_of(KeyError("x")) is problems.INTERNAL


class Broken:
    """A store of which every call fails in one way."""

    def __init__(self, store: SqlStore, fault: Exception) -> None:
        self._store = store
        self._fault = fault

    def __getattr__(self, name: str) -> object:
        def fail(*_: object, **__: object) -> None:
            raise self._fault

        assert hasattr(self._store, name)
        return fail


def test_a_database_out_of_reach_is_503_with_a_hint_to_wait(store: SqlStore, clock: FakeClock) -> None:
    client = new_client(Broken(store, StoreUnavailable("the database is locked")), clock)  # type: ignore[arg-type]
    answer = client.get("/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (503, "store-unavailable")
    assert answer.headers["retry-after"] == "2"
    ready = client.get("/health/ready")
    assert (ready.status_code, ready.json()["checks"]["database"]["ok"]) == (503, False)
    assert client.get("/health/live").status_code == 200


def test_an_unforeseen_fault_is_a_500_that_hides_the_cause(store: SqlStore, clock: FakeClock) -> None:
    secret = sqlite3.OperationalError("near SELECT password FROM users: syntax error")
    client = new_client(Broken(store, secret), clock)  # type: ignore[arg-type]
    answer = client.get("/v1/jobs/job_x")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert answer.json()["code"] == "internal"
    assert "password" not in answer.text
    assert "content-security-policy" in answer.headers
    page = client.get("/", headers={"Accept": "text/html"})
    assert (page.status_code, "password" in page.text) == (500, False)


def test_a_long_fault_is_cut() -> None:
    assert len(str(problems.document(problems.INTERNAL, "x" * 10_000)["detail"])) < 1100
