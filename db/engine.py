"""Connections and transactions, the same on SQLite and PostgreSQL; database faults become the store's own."""

import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from db.errors import SchemaMismatch, StoreDamaged, StoreUnavailable
from tuner.ports import Clock

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0
RETRIES = 8
# A host that went away without a word must not hold a runner for ever: the system's own limits are hours (seconds, but
# for tcp_user_timeout in milliseconds: how long what was sent may stay unanswered by the other host's kernel).
_PG_CONNECT = {
    "connect_timeout": 10,
    "options": f"-c lock_timeout={int(BUSY_TIMEOUT_S)}s",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_IMMEDIATE = "tilewright_immediate"

_SQLITE_LATER = {
    sqlite3.SQLITE_BUSY: "the database is locked by another process",
    sqlite3.SQLITE_LOCKED: "the database is locked",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reported an input/output error",
    sqlite3.SQLITE_CANTOPEN: "the database file cannot be opened",
    sqlite3.SQLITE_READONLY: "the database file cannot be written",
    sqlite3.SQLITE_PERM: "the database file may not be accessed",
}
_SQLITE_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# Faults without a code of their own.
_SQLITE_DAMAGED_WORDS = ("unsupported file format", "Could not decode to UTF-8")
# SQLSTATE classes and codes, PostgreSQL's manual, appendix A.
_PG_LATER = ("08", "53", "57", "58", "55P03", "25006")
_PG_CONFLICT = ("40001", "40P01")
_PG_DAMAGED = ("XX001", "XX002")
_PG_NO_TABLE = ("42P01", "42703")


def parse_url(url: str) -> URL:
    """SQLAlchemy's URL of `url`: a path to a SQLite file, sqlite:///..., or postgresql://... (psycopg 3).

    Raises ValueError for anything else, and for SQLite in memory, which its processes could not share.
    """
    try:
        parsed = make_url(url) if "://" in url else URL.create("sqlite", database=url)
    except (ArgumentError, ValueError) as fault:
        raise ValueError(f"not a database URL: {fault}") from None
    backend = parsed.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ValueError(f"the database must be sqlite or postgresql, not {backend}")
    if not parsed.database or parsed.database == ":memory:":
        raise ValueError("SQLite needs a file: every process of the service opens it")
    return parsed


def make_engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=20, max_overflow=30)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(url, connect_args=_PG_CONNECT, pool_pre_ping=True, pool_size=10, max_overflow=20)


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    """The driver must not begin transactions by itself: a write has to take its lock at once (see _begin_sqlite).

    With a write-ahead log `synchronous = NORMAL` keeps every acknowledged commit through a killed process; a power
    cut may lose the newest ones but damages nothing (sqlite.org/wal.html).
    """
    connection.isolation_level = None
    for pragma in (f"busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}", "foreign_keys = ON", "synchronous = NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """A read transaction that turned into a write fails at once when another wrote in between, without waiting."""
    immediate = connection.get_execution_options().get(_IMMEDIATE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


class _Conflict(Exception):
    """Lost a race against another transaction; running it again sees what the other one wrote."""


class Transactions:
    """Runs functions of a session, each as one transaction, again when it lost a race.

    The time: on PostgreSQL the database's, so that the leases of runners on several hosts do not depend on their
    clocks; on SQLite this host's, which all its processes share; `clock`, where one was passed, decides in both. A
    clock that jumps can end a lease early or late; the fencing token keeps the rows right in either case.
    """

    def __init__(self, engine: Engine, clock: Clock | None) -> None:
        self.engine = engine
        self._writer = engine.execution_options(**{_IMMEDIATE: True})
        self._clock = clock

    @property
    def postgresql(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    def now(self, session: Session) -> float:
        if self._clock is not None:
            return self._clock.now()
        if self.postgresql:
            return float(session.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
        return time.time()

    def read(self, work: Callable[[Session], T]) -> T:
        try:
            return self._once(self.engine, work)
        except _Conflict as fault:
            raise StoreUnavailable("the database gave up a reading transaction") from fault

    def look_up(self, work: Callable[[Connection], T]) -> T:
        """As `read`, without the object mapper between: for the queries that users wait for."""
        try:
            with self.engine.connect() as connection, connection.begin():
                return work(connection)
        except (DBAPIError, PoolTimeout) as fault:
            raise translated(fault) from fault

    def write(self, work: Callable[[Session], T]) -> T:
        last: BaseException | None = None
        for _ in range(RETRIES):
            try:
                return self._once(self._writer, work)
            except _Conflict as fault:
                last = fault.__cause__
        raise StoreUnavailable(f"other transactions won {RETRIES} times: {last}") from last

    def _once(self, engine: Engine, work: Callable[[Session], T]) -> T:
        try:
            # Without autoflush the changes of a transaction are written together, at its end or where it says so.
            with Session(engine, autoflush=False, expire_on_commit=False) as session, session.begin():
                return work(session)
        except (DBAPIError, PoolTimeout) as fault:
            raise translated(fault) from fault


def translated(fault: DBAPIError | PoolTimeout) -> Exception:
    """The store's own error for a fault of the database."""
    if isinstance(fault, PoolTimeout):
        return StoreUnavailable("all connections to the database are in use")
    orig = fault.orig
    if isinstance(fault, IntegrityError):
        return _Conflict(str(orig)) if _is_duplicate(orig) else fault
    if isinstance(orig, sqlite3.Error):
        return _of_sqlite(orig)
    state = str(getattr(orig, "sqlstate", None) or "")
    text = str(orig).strip()
    if state.startswith(_PG_CONFLICT):
        return _Conflict(text)
    if state.startswith(_PG_DAMAGED):
        return StoreDamaged(f"PostgreSQL reports damaged data: {text}; restore it from a backup")
    if state in _PG_NO_TABLE:
        return SchemaMismatch(f"the schema is not the expected one: {text}; run `python -m db migrate URL`")
    if fault.connection_invalidated or not state or state.startswith(_PG_LATER):
        return StoreUnavailable(f"PostgreSQL cannot be used now: {text}")
    return fault


def _is_duplicate(orig: BaseException | None) -> bool:
    codes = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
    return getattr(orig, "sqlite_errorcode", None) in codes or getattr(orig, "sqlstate", None) == "23505"


def _of_sqlite(orig: sqlite3.Error) -> Exception:
    code = getattr(orig, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    if code in _SQLITE_LATER:
        name = getattr(orig, "sqlite_errorname", "")  # the extended one tells which of many calls failed
        return StoreUnavailable(f"{_SQLITE_LATER[code]} ({orig}; {name})")
    if code in _SQLITE_DAMAGED or any(words in str(orig) for words in _SQLITE_DAMAGED_WORDS):
        return StoreDamaged(f"the SQLite file is damaged ({orig}); restore it from a backup or move it away")
    if "no such table" in str(orig) or "no such column" in str(orig):
        return SchemaMismatch(f"the schema is not the expected one ({orig}); run `python -m db migrate URL`")
    return orig
