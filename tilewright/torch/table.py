"""What the operators serve: a table from a call's shape to a loaded kernel, filled once by `use`."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tilewright.runtime.kernel import Kernel
from tilewright.torch.tally import TUNED, UNTUNED, VENDOR, Key, Tallies, Tally

_PLANS = 8192  # signatures of calls whose plan is kept; a program that sees more has shapes that vary without end

Run = TypeVar("Run", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """`kernel` is None where the vendor's kernel was the faster one."""

    kernel: Kernel | None


@dataclass(frozen=True)
class Plan(Generic[Run]):
    """How calls of one signature are served: by `run`, or by torch where it is None. `key` is their workload; `more`
    are tallies of what else was missed."""

    device: str
    key: Key
    tally: Tally
    run: Run | None = None
    more: tuple[Tally, ...] = ()


class Table:
    """Entries by (kind of device, workload), and the plans made from them. `replace` swaps both at once."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, Key], Entry] = {}
        self.plans: dict[Hashable, Plan[Any]] = {}
        self.tallies = Tallies()

    def replace(self, entries: Mapping[tuple[str, Key], Entry]) -> None:
        self._entries, self.plans = dict(entries), {}

    def find(self, device: str, *keys: Key) -> tuple[Kernel | None, Tally]:
        """The kernel for the first of `keys` (several ways to say the same call) that has an entry."""
        for key in keys:
            entry = self._entries.get((device, key))
            if entry is not None:
                return entry.kernel, self.tallies.of(device, key, TUNED if entry.kernel is not None else VENDOR)
        return None, self.tallies.of(device, keys[0], UNTUNED)

    def refused(self, device: str, key: Key, reason: str) -> None:
        """Count a call that no schedule could have served."""
        self.tallies.of(device, key, reason).count()

    def keep(self, plans: dict[Hashable, Plan[Any]], signature: Hashable, plan: Plan[Any]) -> None:
        """Into `plans`, the dictionary that the caller looked in: one replaced since is dropped with what is put in."""
        if len(plans) >= _PLANS:
            plans.clear()
        plans[signature] = plan


TABLE = Table()


def key_of(workload: Mapping[str, object]) -> Key:
    return tuple(sorted(workload.items()))
