"""The devices that runners have, by heartbeat."""

from collections.abc import Mapping, Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from db import events, tallies
from db.mapping import canonical, clean, dump, target_of
from db.states import MAX_SILENCE_S
from db.tables import JobRow
from db.tables_served import DeviceRow
from tuner.job import JobState
from tuner.ports import DeviceInfo
from tuner.views import DeviceView


def heartbeat(
    session: Session,
    runner_id: str,
    devices: Sequence[DeviceInfo],
    ttl_s: float,
    now: float,
    amounts: Mapping[tallies.Key, float],
) -> None:
    """Write what the runner has now, alive for `ttl_s`. A device whose health or identity changed is told to the jobs
    that the runner works on; rows that a runner of before left for the same device go once they have expired."""
    changed: list[DeviceInfo] = []
    alive_s: dict[tallies.Key, float] = {}
    # One order in every runner: two that see the same devices do not wait for each other in a circle.
    for device in sorted(devices, key=lambda d: d.device_id):
        was = session.get(DeviceRow, (runner_id, clean(device.device_id) or ""))
        if was is not None and was.healthy:
            kind = (tallies.ALIVE, device.target.kind)
            alive_s[kind] = alive_s.get(kind, 0.0) + min(max(0.0, now - was.last_seen_at), ttl_s)
        if _seen(session, runner_id, device, ttl_s, now):
            changed.append(device)
    tallies.add(session, source_of(runner_id), {**amounts, **alive_s})
    if not changed:
        return
    jobs = session.scalars(
        select(JobRow)
        .where(JobRow.state == JobState.RUNNING.value, JobRow.lease_runner == runner_id)
        .order_by(JobRow.id)
        .with_for_update()
    )
    for job in jobs:
        for device in changed:
            data = {"device": device.device_id, "healthy": device.healthy, "detail": device.detail}
            events.append(session, job, "device", data, now)


def source_of(runner_id: str) -> str:
    """The host of a runner, HOST:PROCESS: its processes come and go, and add to one row."""
    return runner_id.rpartition(":")[0] or runner_id


def _seen(session: Session, runner_id: str, device: DeviceInfo, ttl_s: float, now: float) -> bool:
    device_id = clean(device.device_id) or ""
    identity = canonical(device.identity.to_json())
    before = session.scalars(
        select(DeviceRow).where(DeviceRow.device_id == device_id).order_by(DeviceRow.last_seen_at.desc()).limit(1)
    ).first()
    same = before is not None and before.identity == identity
    changed = before is not None and (not same or before.healthy != device.healthy)
    since = before.identity_since if before is not None and same else now
    session.execute(
        delete(DeviceRow).where(
            DeviceRow.device_id == device_id, DeviceRow.runner_id != runner_id, DeviceRow.expires_at <= now
        )
    )
    session.merge(
        DeviceRow(
            runner_id=runner_id,
            device_id=device_id,
            target=canonical(device.target.to_json()),
            identity=identity,
            roofs=dump(device.roofs.to_json()) if device.roofs else None,
            healthy=device.healthy,
            detail=clean(device.detail) or "",
            identity_since=since,
            last_seen_at=now,
            expires_at=now + ttl_s,
        )
    )
    session.flush()
    return changed


def devices(session: Session, now: float) -> list[DeviceView]:
    rows = session.scalars(select(DeviceRow).order_by(DeviceRow.device_id, DeviceRow.runner_id))
    return [
        DeviceView(
            row.runner_id,
            row.device_id,
            target_of(row.target),
            row.healthy,
            row.detail,
            row.last_seen_at,
            now < row.expires_at and row.last_seen_at <= now + MAX_SILENCE_S,  # not from before the clock jumped back
        )
        for row in rows
    ]
