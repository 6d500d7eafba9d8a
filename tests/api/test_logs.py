"""Logs for machines: one JSON object a line, with the ids of what they are about."""

import json
import logging

from api_world import claimed_job

from api.logs import JsonFormatter
from db.store import SqlStore


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        assert "\n" not in line
        self.lines.append(json.loads(line))


def test_a_committed_trial_is_one_line_with_its_ids(store: SqlStore) -> None:
    kept, logger = Kept(), logging.getLogger("tilewright.store")
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    try:
        lease = claimed_job(store, [0.003, None])
    finally:
        logger.removeHandler(kept)
        logger.setLevel(logging.NOTSET)
    trials = store.trials(lease.job_id, None, None, 10, None).items
    assert [(line["job"], line["trial"], line["outcome"]) for line in kept.lines] == [
        (lease.job_id, t.id, t.outcome.value) for t in trials
    ]
    assert {line["level"] for line in kept.lines} == {"info"}


def test_an_error_keeps_its_traceback_on_the_line() -> None:
    kept, logger = Kept(), logging.getLogger("tilewright.test")
    logger.addHandler(kept)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("broke", extra={"job": "job_a"})
    finally:
        logger.removeHandler(kept)
    (line,) = kept.lines
    assert (line["message"], line["job"], line["level"]) == ("broke", "job_a", "error")
    assert "ValueError: two" in str(line["error"])
    assert "trial" not in line
