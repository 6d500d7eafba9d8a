"""The tables of a job's life: jobs, tasks, trials, measurements, events. `tables_served` holds the rest.

Nouns are stored as their canonical JSON in text columns (strict: no NaN or Infinity), beside the columns that queries
need. Times are seconds since the epoch, UTC; latencies are seconds.
"""

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite numbers rows by itself only for a column typed INTEGER.
BigId = BigInteger().with_variant(Integer, "sqlite")

# Spelt out here and in the queries alike: SQLite uses a partial index only where the query repeats its condition.
WAITING = text("waiting")
PENDING = text("pending")
IMPROVED = text("improved")
WHOLE = text("pruned_at IS NULL")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class JobRow(Base):
    """One tuning job with its budget, its lease and its counters. Its row lock guards everything of the job."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index(
            "ix_jobs_claim",
            "claim_rank",
            "virtual_s",
            "created_at",
            "id",
            sqlite_where=WAITING,
            postgresql_where=WAITING,
        ),
        Index("ix_jobs_newest", "created_at", "id"),
        Index("ix_jobs_owner", "key_id", "state"),
        Index("ix_jobs_ended", "finished_at", "id", sqlite_where=WHOLE, postgresql_where=WHOLE),
        Index("ix_jobs_state_newest", "state", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    # Up to 4096 tasks: not read by the many short transactions that only need the counters.
    spec: Mapped[str] = mapped_column(Text, deferred=True)
    spec_digest: Mapped[str] = mapped_column(String(64))
    idempotency_key: Mapped[str | None] = mapped_column(String(64), unique=True)  # SHA-256 of the client's key
    target_kind: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    waiting: Mapped[bool] = mapped_column(default=True)  # queued or interrupted: a runner may claim it
    stop_reason: Mapped[str | None] = mapped_column(String(32))
    error_code: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(Text)
    claim_rank: Mapped[int] = mapped_column(Integer)  # minus the priority, so that one ascending index serves claim
    created_at: Mapped[float] = mapped_column(Double)
    started_at: Mapped[float | None] = mapped_column(Double)
    finished_at: Mapped[float | None] = mapped_column(Double)

    max_trials: Mapped[int] = mapped_column(Integer)
    next_ordinal: Mapped[int] = mapped_column(Integer, default=0)  # trials reserved so far, never above max_trials
    trials_done: Mapped[int] = mapped_column(Integer, default=0)
    phase_seconds: Mapped[str] = mapped_column(Text, default="{}")
    last_event: Mapped[int] = mapped_column(Integer, default=0)

    lease_token: Mapped[int] = mapped_column(BigInteger, default=0)
    lease_runner: Mapped[str | None] = mapped_column(Text)
    lease_expires_at: Mapped[float | None] = mapped_column(Double)
    elapsed_s: Mapped[float] = mapped_column(Double, default=0.0)  # of the runs that have ended
    running_since: Mapped[float | None] = mapped_column(Double)
    last_seen_at: Mapped[float | None] = mapped_column(Double)

    # Fair sharing (db.shares): device seconds / weight, from where the job joined the others of its priority.
    weight: Mapped[float] = mapped_column(Double, default=1.0, server_default=text("1.0"))
    virtual_s: Mapped[float] = mapped_column(Double, default=0.0, server_default=text("0.0"))
    charged_s: Mapped[float] = mapped_column(Double, default=0.0, server_default=text("0.0"))  # of elapsed_s
    key_id: Mapped[str | None] = mapped_column(String(40))  # the API key that submitted it
    pruned_at: Mapped[float | None] = mapped_column(Double)  # when its records were removed (db.retention)


class OutcomeRow(Base):
    """Trials of a job by the outcome of their last attempt, kept as they are committed."""

    __tablename__ = "job_outcomes"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    outcome: Mapped[str] = mapped_column(String(24), primary_key=True)
    trials: Mapped[int] = mapped_column(Integer)


class TaskRow(Base):
    """One workload of a job. `position` is its index in the job; `target` is null until the first claim binds it."""

    __tablename__ = "tasks"
    __table_args__ = (UniqueConstraint("job_id", "position"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    position: Mapped[int] = mapped_column(Integer)
    workload: Mapped[str] = mapped_column(Text)
    workload_key: Mapped[str] = mapped_column(String(16))
    op: Mapped[str] = mapped_column(String(32))
    weight: Mapped[float] = mapped_column(Double)
    target: Mapped[str | None] = mapped_column(Text)
    target_kind: Mapped[str | None] = mapped_column(String(16))
    stop_reason: Mapped[str | None] = mapped_column(String(32))
    trials: Mapped[int] = mapped_column(Integer, default=0)  # trials with a committed measurement
    measurements: Mapped[int] = mapped_column(Integer, default=0)
    best_measured_s: Mapped[float | None] = mapped_column(Double)
    baseline_name: Mapped[str | None] = mapped_column(Text)
    baseline_latency_s: Mapped[float | None] = mapped_column(Double)
    baseline: Mapped[str | None] = mapped_column(Text, deferred=True)  # the whole measurement
    best: Mapped[str | None] = mapped_column(Text)  # BestConfig, after a promotion
    schedule_id: Mapped[str | None] = mapped_column(String(40))


class TrialRow(Base):
    """A candidate with its ordinal in the job's budget, and what its last measured attempt ended with.

    `pending`: the attempt `attempt` has no measurement yet. `token`: the lease under which it was last handed out.
    """

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("job_id", "ordinal"),
        UniqueConstraint("task_id", "candidate_key"),
        Index("ix_trials_pending", "task_id", "ordinal", sqlite_where=PENDING, postgresql_where=PENDING),
        Index("ix_trials_task", "task_id", "ordinal"),
        Index("ix_trials_outcome", "job_id", "outcome", "ordinal"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    ordinal: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    candidate: Mapped[str] = mapped_column(Text)
    candidate_key: Mapped[str] = mapped_column(String(16))
    predicted_score: Mapped[float | None] = mapped_column(Double)
    token: Mapped[int] = mapped_column(BigInteger)
    pending: Mapped[bool] = mapped_column(default=True)

    measured_attempt: Mapped[int | None] = mapped_column(Integer)
    outcome: Mapped[str | None] = mapped_column(String(24))
    latency_s: Mapped[float | None] = mapped_column(Double)
    ci95_low_s: Mapped[float | None] = mapped_column(Double)
    ci95_high_s: Mapped[float | None] = mapped_column(Double)
    error: Mapped[str | None] = mapped_column(Text)
    device_id: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[float | None] = mapped_column(Double)
    finished_at: Mapped[float | None] = mapped_column(Double)


class MeasurementRow(Base):
    """One attempt at one trial, never changed once written. A trial is a (job, task, candidate), so the unique
    constraint is the one on (job, task, candidate, attempt).

    `sequence` counts the task's measurements from 1 in commit order and `level` is how often 2 divides it: the rows of
    level >= L are every 2^L-th point, so a curve of any coarseness is one index range (see `db.progress`).
    """

    __tablename__ = "measurements"
    __table_args__ = (
        UniqueConstraint("trial_id", "attempt"),
        Index("ix_measurements_curve", "task_id", "level", "sequence"),
        Index("ix_measurements_improved", "task_id", "sequence", sqlite_where=IMPROVED, postgresql_where=IMPROVED),
        Index("ix_measurements_related", "op", "target_kind", "id"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"))
    attempt: Mapped[int] = mapped_column(Integer)
    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    op: Mapped[str] = mapped_column(String(32))
    target_kind: Mapped[str] = mapped_column(String(16))
    token: Mapped[int] = mapped_column(BigInteger)
    measurement: Mapped[str] = mapped_column(Text)
    artifact: Mapped[str | None] = mapped_column(String(64))
    latency_s: Mapped[float | None] = mapped_column(Double)
    committed_at: Mapped[float] = mapped_column(Double)
    sequence: Mapped[int] = mapped_column(Integer)
    level: Mapped[int] = mapped_column(Integer)
    improved: Mapped[bool] = mapped_column()
    best_latency_s: Mapped[float | None] = mapped_column(Double)  # of the task, this measurement included


class EventRow(Base):
    """`sequence` is taken from the job's row under its lock: gapless and in commit order on every database."""

    __tablename__ = "events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(16))
    data: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(Double)
