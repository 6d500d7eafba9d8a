"""How much memory a child and what it started may use, and do use."""

import os

from workers.host import memory_bytes

# A `memory_limit_bytes` that stands for this part of what the host has that starts the child (the rest is the
# supervisor's and the user's).
HOST_SHARE = -1
_SHARE = 0.8


def limit_bytes(limit: int) -> int:
    """`limit` resolved on this host; 0 is none."""
    return int(_SHARE * memory_bytes()) if limit == HOST_SHARE else limit


def group_resident_bytes(leader: int) -> int:
    """Resident bytes of the session `leader` and its direct children (a compiler that it runs)."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid in (leader, *_children(leader)):
        try:
            with open(f"/proc/{pid}/statm") as file:
                total += int(file.read().split()[1]) * page
        except (OSError, IndexError):
            continue  # it ended meanwhile
    return total


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(text) for text in file.read().split()]
    except OSError:
        return []
