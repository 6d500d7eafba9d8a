"""The tables that outlive a job: schedules with their artifacts, cost models, devices, keys, counts of events."""

from sqlalchemy import (
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from db.tables import Base, BigId

CURRENT = text("is_current")


class ScheduleRow(Base):
    """One promotion; never deleted. `is_current` marks the one that lookups serve for its (workload, identity)."""

    __tablename__ = "schedules"
    __table_args__ = (
        Index(
            "uq_schedules_current",
            "workload_key",
            "identity_key",
            unique=True,
            sqlite_where=CURRENT,
            postgresql_where=CURRENT,
        ),
        Index("ix_schedules_family", "family_key", "target_kind", sqlite_where=CURRENT, postgresql_where=CURRENT),
        Index("ix_schedules_job", "job_id", "promoted_at"),
        Index("ix_schedules_task", "task_id"),
        Index("ix_schedules_artifact", "artifact"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    workload: Mapped[str] = mapped_column(Text)
    workload_key: Mapped[str] = mapped_column(String(16))
    family_key: Mapped[str] = mapped_column(String(16))  # op, dtypes and flags: what a neighbour must share
    extents: Mapped[str] = mapped_column(Text)  # JSON object: field -> extent
    target: Mapped[str] = mapped_column(Text)
    target_kind: Mapped[str] = mapped_column(String(16))
    identity_key: Mapped[str] = mapped_column(String(16))
    sketch: Mapped[str] = mapped_column(Text)
    sketch_version: Mapped[int] = mapped_column(Integer)
    best: Mapped[str] = mapped_column(Text)
    latency_s: Mapped[float] = mapped_column(Double)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifacts.digest"))
    measured_at: Mapped[float] = mapped_column(Double)
    promoted_at: Mapped[float] = mapped_column(Double)
    is_current: Mapped[bool] = mapped_column()


class ArtifactRow(Base):
    """Built code by the SHA-256 of its bytes; `data` is null where they lie in a folder or bucket."""

    __tablename__ = "artifacts"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    data: Mapped[bytes | None] = mapped_column(LargeBinary)
    created_at: Mapped[float] = mapped_column(Double)


class CostModelRow(Base):
    """The newest trained cost model of an op on a kind of device."""

    __tablename__ = "cost_models"

    op: Mapped[str] = mapped_column(String(32), primary_key=True)
    target_kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    blob: Mapped[bytes] = mapped_column(LargeBinary)
    feature_version: Mapped[str] = mapped_column(Text)
    saved_at: Mapped[float] = mapped_column(Double)


class DeviceRow(Base):
    """A device as a runner last saw it. `identity_since`: when this identity was first seen on this device."""

    __tablename__ = "devices"
    __table_args__ = (Index("ix_devices_device", "device_id", "last_seen_at"),)

    runner_id: Mapped[str] = mapped_column(Text, primary_key=True)
    device_id: Mapped[str] = mapped_column(Text, primary_key=True)
    target: Mapped[str] = mapped_column(Text)
    identity: Mapped[str] = mapped_column(Text)
    roofs: Mapped[str | None] = mapped_column(Text)
    healthy: Mapped[bool] = mapped_column()
    detail: Mapped[str] = mapped_column(Text)
    identity_since: Mapped[float] = mapped_column(Double)
    last_seen_at: Mapped[float] = mapped_column(Double)
    expires_at: Mapped[float] = mapped_column(Double)


class LookupRow(Base):
    """How often a workload was looked up for a target query, by what the answer was."""

    __tablename__ = "lookups"
    __table_args__ = (UniqueConstraint("workload_key", "target_key"), Index("ix_lookups_newest", "last_at", "id"))

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    workload_key: Mapped[str] = mapped_column(String(16))
    workload: Mapped[str] = mapped_column(Text)
    target: Mapped[str] = mapped_column(Text)
    target_key: Mapped[str] = mapped_column(String(16))
    exact: Mapped[int] = mapped_column(Integer, default=0)
    nearest: Mapped[int] = mapped_column(Integer, default=0)
    stale: Mapped[int] = mapped_column(Integer, default=0)
    missed: Mapped[int] = mapped_column(Integer, default=0)
    last_at: Mapped[float] = mapped_column(Double)


class KeyRow(Base):
    """An API key: who may do what. The key itself is not here, only its hash (db.keys)."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    scope: Mapped[str] = mapped_column(String(16))
    requests_per_minute: Mapped[int | None] = mapped_column(Integer)
    open_jobs: Mapped[int | None] = mapped_column(Integer)
    open_trials: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[float] = mapped_column(Double)
    revoked_at: Mapped[float | None] = mapped_column(Double)


class TallyRow(Base):
    """What happened, added up by whoever saw it, so that no two of them wait for one row. `label` is
    a histogram's bucket by its upper bound in seconds, or a counter's label."""

    __tablename__ = "tallies"

    source: Mapped[str] = mapped_column(Text, primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    label: Mapped[str] = mapped_column(String(40), primary_key=True)
    value: Mapped[float] = mapped_column(Double)
