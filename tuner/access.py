"""Who may use the service, and how much of it: keys with a scope and limits. How they are kept is the store's part."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """Each holds what stands before it."""

    READ = "read"  # look at everything
    SUBMIT = "submit"  # submit jobs, and steer or delete the key's own
    ADMIN = "admin"  # steer and delete any job, import records

    def allows(self, wanted: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(wanted)


@dataclass(frozen=True)
class KeyLimits:
    """None is no limit. `open_trials`: the trials that the key's unfinished jobs may still measure, together."""

    requests_per_minute: int | None = 600
    open_jobs: int | None = 20
    open_trials: int | None = 100_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 1 <= value < 2**31:
                raise ValueError(f"{name} must be between 1 and {2**31 - 1}, got {value}")


UNLIMITED = KeyLimits(None, None, None)


@dataclass(frozen=True)
class KeyView:
    """What is told of a key; the key itself is shown once, when it is made. Times are seconds since the epoch."""

    id: str
    name: str
    scope: Scope
    limits: KeyLimits
    created_at: float
    revoked_at: float | None


@dataclass(frozen=True)
class Owner:
    """Whose job is submitted: its key and what that key may have open."""

    key_id: str
    limits: KeyLimits = UNLIMITED


class LimitReached(RuntimeError):
    """The key has as much open as it may; the same request is taken once some of it has ended."""
