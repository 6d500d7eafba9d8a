"""Exit statuses and how a failure is shown: 0 done, 1 the job failed, 2 bad arguments, 130 interrupted."""

import json
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec

from tilewright.client import ApiError, Unreachable

FAILED, BAD_ARGUMENTS, INTERRUPTED = 1, 2, 130
P = ParamSpec("P")


class Refused(RuntimeError):
    """What a command was pointed at cannot be used; the message says what to do. `status` is the exit status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


def fail(message: str, status: int = FAILED) -> NoReturn:
    print(f"tilewright: {message}", file=sys.stderr)
    raise SystemExit(status)


def shown(command: Callable[P, Any]) -> Callable[P, Any]:
    """Turn the client's errors into one line on stderr and the right exit status."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            return command(*args, **kwargs)
        except ApiError as fault:
            fail(_describe(fault), BAD_ARGUMENTS if fault.status in (400, 413, 422) else FAILED)
        except Unreachable as fault:
            fail(f"{fault}. Is `tilewright serve` running there?")
        except Refused as fault:
            fail(str(fault), fault.status)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None

    return guarded


def _describe(fault: ApiError) -> str:
    fields = fault.problem.get("errors")
    if isinstance(fields, list) and fields:
        parts = [f"{e.get('field', '?')}: {e.get('message', '')}" for e in fields if isinstance(e, dict)]
        return "; ".join(parts)
    field = fault.problem.get("field")
    text = str(fault)
    return text if not field or str(field) in text else f"{field}: {text}"


def print_json(document: object) -> None:
    """One JSON document on stdout and nothing else."""
    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")
