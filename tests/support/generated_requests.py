"""Requests that schemathesis makes from the OpenAPI document, right and wrong, and what is asked of the answers."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import GenerationMode

load_all_checks()

# Asked of every request. The rest of schemathesis's checks each need something: see `checks_of`.
ALWAYS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "missing_required_header",
    "ignored_auth",
    "use_after_free",
    "ensure_resource_availability",
    "object_level_authorization",
)
# A workload has rules between its fields (heads_q a multiple of heads_kv, an extent that no sketch takes), which a JSON
# Schema cannot say: what fits the schema may be refused, with the field named.
BETWEEN_FIELDS = ("/v1/jobs", "/v1/schedules/best", "/v1/schedules/best:batch")
# A cursor is a token that the service made: any other string is refused.
WITH_CURSOR = ("/v1/jobs", "/v1/jobs/{job_id}/trials", "/v1/lookups", "/v1/stale")


def checks_of(path: str) -> list[str]:
    """The names of the checks that an operation must pass: all of them, but for what is told here."""
    names = list(ALWAYS)
    if path not in (*BETWEEN_FIELDS, *WITH_CURSOR):
        names.append("positive_data_acceptance")
    if not path.endswith(":batch"):  # a wrong workload in a batch is refused in its own place, and spoils no other: 200
        names.append("negative_data_rejection")
    return names


@dataclass
class Tally:
    """Requests sent, by operation, and answers by status."""

    requests: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.requests.values())


def operations(document: schemathesis.BaseSchema) -> Iterator[tuple[str, str]]:
    """(path, method) of each."""
    for result in document.get_all_operations():
        operation = result.ok()
        yield operation.path, operation.method


def check_operation(
    document: schemathesis.BaseSchema,
    path: str,
    method: str,
    mode: GenerationMode,
    examples: int,
    tally: Tally,
    headers: dict[str, str] | None = None,
    seeded: int = 0,
) -> None:
    """Send `examples` requests of the operation. Raises, with what was sent, at a wrong answer."""
    operation = document[path][method.upper()]
    if mode is GenerationMode.NEGATIVE and not (operation.query or operation.path_parameters or operation.body):
        return  # nothing of such a request could be wrong
    checks = CHECKS.get_by_names(checks_of(path))

    @seed(seeded)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        answer = case.call_and_validate(checks=checks, headers=headers)
        tally.requests[f"{method.upper()} {path}"] += 1
        tally.statuses[answer.status_code] += 1

    run: Callable[[], None] = check
    run()
