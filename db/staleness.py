"""What a new driver, compiler or sketch version made stale: workloads that are served, but no longer exactly."""

import itertools

from sqlalchemy import Connection, select

from db import cursors
from db.lookup import Asked, newest_identities
from db.mapping import target_of, workload_of
from db.sketch_versions import SketchVersion
from db.tables_served import CURRENT, ScheduleRow
from search_space.target import TargetQuery
from tuner.views import Page, StaleView

_C = ScheduleRow.__table__.c
_NAMES = ("workload_key", "target_kind", "workload", "target", "best", "sketch", "sketch_version")
# Read in the order of the unique index on what is served, so a page costs what it reads.
QUERY = select(*(_C[n] for n in _NAMES)).where(CURRENT).order_by(_C.workload_key, _C.identity_key)
_AT_A_TIME = 2000


def page(connection: Connection, version: SketchVersion, limit: int, cursor: str | None) -> Page[StaleView]:
    """By workload. One entry a workload and kind of device of which every served schedule differs from the newest
    device of that kind that the database knows (or, where none is known, has another sketch version)."""
    size = cursors.page_size(limit)
    key = cursors.decode("stale", cursor, str, str)
    asked = Asked(version, {}, newest_identities(connection, TargetQuery("auto"), {}))
    query = QUERY if key is None else QUERY.where(_C.workload_key >= key[0])
    found: list[tuple[str, StaleView]] = []
    rows = connection.execution_options(yield_per=_AT_A_TIME).execute(query)
    for workload_key, of_workload in itertools.groupby(rows, lambda row: str(row.workload_key)):
        by_kind: dict[str, list[tuple[str, ...]]] = {}
        last = {}
        for row in of_workload:
            by_kind.setdefault(row.target_kind, []).append(asked.differences(row))
            last[row.target_kind] = row
        for kind, differences in sorted(by_kind.items()):
            if key is not None and (workload_key, kind) <= key:
                continue
            closest = min(differences, key=len)
            if closest:
                row = last[kind]
                found.append((workload_key, StaleView(workload_of(row.workload), target_of(row.target), closest)))
        if len(found) > size:
            break
    more = len(found) > size
    found = found[:size]
    following = cursors.encode("stale", (found[-1][0], found[-1][1].target.kind)) if more else None
    return Page([view for _, view in found], following)
