"""What the service's processes write to stderr: lines for people, or one JSON object a line for machines."""

import json
import logging
from datetime import UTC, datetime
from typing import Literal

Form = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# What a record carries beside its message, where the code that logs knows it: `extra={"job": ..., "trial": ...}`.
FIELDS = ("job", "trial", "outcome", "runner", "token")


class JsonFormatter(logging.Formatter):
    """time (RFC 3339, UTC), level, logger, message, FIELDS where known, and error with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        told |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def configure(form: Form) -> None:
    """Set up the root logger of this process; once, by its entry point."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it says which database it looks at, at every look
