"""What is served for a workload on a target: the exact schedule, a stale one, or the nearest neighbours."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select
from sqlalchemy.orm import Session

from db.mapping import best_of, extents_of, family_of, identity_of, target_of
from db.schedules import view_of
from db.sketch_versions import SketchVersion
from db.tables_served import CURRENT, DeviceRow, ScheduleRow
from search_space.environment import EnvironmentIdentity
from search_space.errors import InvalidField
from search_space.target import TargetQuery
from search_space.workload import Workload
from tuner.views import Lookup, ScheduleView

FILTERS = tuple(f.name for f in fields(EnvironmentIdentity))
_ALIASES = {"device": "model"}


# Built once: composing a statement costs more than running it.
_SCHEDULES, _DEVICES = ScheduleRow.__table__.c, DeviceRow.__table__.c
# Every schedule served for the workload, newest first: one a device identity, so a handful.
BEST = (
    select(
        *(_SCHEDULES[name] for name in ("id", "job_id", "workload", "target", "best", "measured_at")),
        *(_SCHEDULES[name] for name in ("sketch", "sketch_version")),
    )
    .where(_SCHEDULES.workload_key == bindparam("workload_key"), CURRENT)
    .order_by(_SCHEDULES.measured_at.desc(), _SCHEDULES.id)
)
_SEEN = select(_DEVICES.device_id, _DEVICES.target, _DEVICES.identity, _DEVICES.identity_since).order_by(
    _DEVICES.last_seen_at
)


def best(
    connection: Connection,
    version: SketchVersion,
    workload: Workload,
    target: TargetQuery,
    device_filter: Mapping[str, str],
) -> Lookup:
    """Exact: a schedule of the very workload, for the identity of the newest known device that the query and the
    filter allow (of any such schedule's own device where no such device is known). Stale: there are only others. With
    devices of two kinds allowed ("auto"), each schedule is held against the newest of its own kind."""
    wanted = _checked(device_filter)
    found = connection.execute(BEST, {"workload_key": workload.key})
    rows = [row for row in found if target.matches(target_of(row.target))]
    if not rows:
        return Lookup("missed", None)
    asked = Asked(version, wanted, newest_identities(connection, target, wanted))
    closest = min(rows, key=lambda row: len(asked.differences(row)))  # of equals the newest: min keeps the first
    differs = asked.differences(closest)
    return Lookup("stale" if differs else "exact", view_of(closest), differs)


@dataclass(frozen=True)
class Asked:
    """What a lookup holds each schedule against."""

    version: SketchVersion
    filter: Mapping[str, str]
    identities: Mapping[str, EnvironmentIdentity]  # by kind of device

    def differences(self, row: Row[Any]) -> tuple[str, ...]:
        """Names of what keeps the row from being exact: identity fields, then sketch_version; empty when it is."""
        own = best_of(row.best).identity
        newest = self.identities.get(own.kind)
        names = dict.fromkeys(newest.differences(own) if newest else ())
        names.update(dict.fromkeys(n for n, value in self.filter.items() if str(getattr(own, n)) != value))
        if self.version(row.sketch) not in (None, row.sketch_version):
            names["sketch_version"] = None
        return tuple(names)


def _checked(device_filter: Mapping[str, str]) -> dict[str, str]:
    wanted = {_ALIASES.get(name, name): value for name, value in device_filter.items()}
    for name in wanted:
        if name not in FILTERS:
            raise InvalidField(name, "is not a field of a device's identity", (*FILTERS, *_ALIASES))
    return wanted


def newest_identities(
    connection: Connection, target: TargetQuery, wanted: Mapping[str, str]
) -> dict[str, EnvironmentIdentity]:
    """Of the devices of each kind that match: the one whose identity is the newest, so that a driver's update counts
    and the heartbeats of two models side by side do not take turns."""
    last: dict[str, tuple[float, float, EnvironmentIdentity]] = {}
    for device_id, stored, identity, since in connection.execute(_SEEN):
        found = identity_of(identity)
        last.pop(device_id, None)  # a device is what it was when last seen, by whichever runner
        if target.matches(target_of(stored)) and all(str(getattr(found, n)) == v for n, v in wanted.items()):
            last[device_id] = (since, len(last), found)
    by_age = sorted(last.values(), key=lambda entry: entry[:2])
    return {found.kind: found for _, _, found in by_age}


def nearest(
    session: Session, version: SketchVersion, workload: Workload, target: TargetQuery, limit: int
) -> list[ScheduleView]:
    """Current schedules of the workload's op, dtypes and flags, by the distance of their log extents."""
    query = select(ScheduleRow.id, ScheduleRow.extents, ScheduleRow.target, ScheduleRow.sketch).add_columns(
        ScheduleRow.sketch_version
    )
    query = query.where(ScheduleRow.family_key == family_of(workload), CURRENT)
    if target.kind != "auto":
        query = query.where(ScheduleRow.target_kind == target.kind)
    here = extents_of(workload)
    ranked: list[tuple[float, str]] = []
    for schedule_id, extents, stored, sketch, sketch_version in session.execute(query):
        if target.matches(target_of(stored)) and version(sketch) in (None, sketch_version):
            ranked.append((_distance(here, json.loads(extents)), schedule_id))
    ids = [schedule_id for _, schedule_id in sorted(ranked)[: max(limit, 0)]]
    rows = {row.id: row for row in session.scalars(select(ScheduleRow).where(ScheduleRow.id.in_(ids)))}
    return [view_of(rows[schedule_id]) for schedule_id in ids]


def _distance(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    names: Iterable[str] = a.keys() | b.keys()
    return math.sqrt(sum(math.log(max(a.get(n, 1), 1) / max(b.get(n, 1), 1)) ** 2 for n in names))
