"""Is this database ours, and at which revision? And the one way to change that: `migrate`."""

import time
from collections.abc import Sequence
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from db.engine import BUSY_TIMEOUT_S, make_engine, parse_url, translated
from db.errors import SchemaMismatch, StoreDamaged, StoreUnavailable

HEAD = "0002"
# Above this a whole check of the file would hold up every start; what it would find is then found on use.
QUICK_CHECK_BYTES = 256 * 2**20
_SQLITE_MAGIC = b"SQLite format 3\x00"
_SQLITE_HEADER = 100
_ADVISORY_LOCK = 0x7469_6C65  # any number, the same in every process that migrates ("tile")
_FOLDER = Path(__file__).parent / "migrations"


def migrate(url: str) -> None:
    """Bring the database at `url` to this program's schema; creates a SQLite file that is not there.

    One transaction: another process sees the old schema or the new one. Safe to call from several at once. Raises
    StoreDamaged or SchemaMismatch (and changes nothing) for a file or a schema that is not ours or newer than ours.
    """
    parsed = parse_url(url)
    engine = make_engine(parsed)
    try:
        check_file(engine)
        if engine.dialect.name == "sqlite":
            Path(str(parsed.database)).resolve().parent.mkdir(parents=True, exist_ok=True)
            _use_write_ahead_log(engine)
        with engine.execution_options(tilewright_immediate=True).begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            _upgrade(connection)
    except DBAPIError as fault:
        raise translated(fault) from fault
    finally:
        engine.dispose()


def check_schema(engine: Engine) -> None:
    """Raises SchemaMismatch where the schema is not this program's, StoreDamaged where the file is not a database."""
    if engine.dialect.name == "sqlite" and not Path(str(engine.url.database)).exists():
        # Connecting would leave an empty file behind.
        raise SchemaMismatch(f"there is no database {engine.url.database}: create it with `python -m db migrate URL`")
    check_file(engine)
    check_revision(engine)


def check_revision(engine: Engine) -> None:
    """The cheap half of check_schema: one query. StoreUnavailable where the database cannot be reached."""
    try:
        with engine.connect() as connection:
            revision = _revision(connection)
    except DBAPIError as fault:
        raise translated(fault) from fault
    if revision == HEAD:
        return
    if revision is None:
        raise SchemaMismatch(f"{_shown(engine)} has no schema yet: run `python -m db migrate URL`")
    _refuse_unknown(engine, revision)
    raise SchemaMismatch(f"{_shown(engine)} is at revision {revision}, {HEAD} is needed: `python -m db migrate URL`")


def touch_revision(session: Session) -> None:
    """Write the revision over itself."""
    session.execute(text("UPDATE alembic_version SET version_num = version_num"))


def check_file(engine: Engine) -> None:
    """A SQLite file that exists must be one, and whole; it is only read here. Nothing to do for PostgreSQL."""
    if engine.dialect.name != "sqlite":
        return
    path = Path(str(engine.url.database))
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_SQLITE_HEADER)
    except FileNotFoundError:
        return
    except OSError as fault:
        raise StoreUnavailable(f"{path} cannot be read: {fault.strerror}") from fault
    if not size:
        return
    if not head.startswith(_SQLITE_MAGIC):
        raise StoreDamaged(f"{path} is not a SQLite database: restore it from a backup or move it away")
    faults = ["its end is cut off"] if _is_cut(path, head, size) else _quick_check(engine, size)
    if faults != ["ok"]:
        raise StoreDamaged(f"{path} is damaged ({faults[0]}): restore it from a backup or move it away")


def _is_cut(path: Path, head: bytes, size: int) -> bool:
    """A part of a page at the end, which SQLite reads as zeros. With a log beside it the missing part stands there."""
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        return False
    page = int.from_bytes(head[16:18], "big")  # the file format's header; 1 stands for 65536
    return size % (65536 if page == 1 else max(page, 1)) != 0


def _quick_check(engine: Engine, size: int) -> Sequence[str]:
    """What SQLite finds wrong with the file: "ok" alone where that is nothing, or where looking would take too long."""
    if size > QUICK_CHECK_BYTES:
        return ["ok"]
    try:
        with engine.connect() as connection:
            return connection.execute(text("PRAGMA quick_check(1)")).scalars().all()
    except DBAPIError as fault:
        raise translated(fault) from fault
    except UnicodeDecodeError:  # the driver cannot even read the names in SQLite's message
        return ["names in its schema are not text"]


def config() -> Config:
    """Alembic's configuration; the connection is passed in `attributes`."""
    found = Config()
    found.set_main_option("script_location", str(_FOLDER))
    return found


def _upgrade(connection: Connection) -> None:
    revision = _revision(connection)
    if revision == HEAD:
        return
    if revision is not None:
        _refuse_unknown(connection.engine, revision)
    settings = config()
    settings.attributes["connection"] = connection
    command.upgrade(settings, HEAD)


def _revision(connection: Connection) -> str | None:
    """The schema's revision; None for an empty database. SchemaMismatch where there are tables but no revision."""
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is None:
        names = sorted(set(inspect(connection).get_table_names()) - {"alembic_version"})
        if names:
            shown = ", ".join(names[:3])
            raise SchemaMismatch(f"{_shown(connection.engine)} holds other tables ({shown}): use another database")
    return revision


def _refuse_unknown(engine: Engine, revision: str) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()}
    if revision not in known:
        message = f"{_shown(engine)} is at revision {revision}, which this program does not know"
        raise SchemaMismatch(f"{message}: it was written by a newer version; upgrade the program")


def _use_write_ahead_log(engine: Engine) -> None:
    """The mode is kept in the file. Changing it does not wait for other processes by itself, hence the loop."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode = WAL").close()
            return
        except engine.dialect.loaded_dbapi.OperationalError as fault:
            if "locked" not in str(fault) or time.monotonic() > deadline:
                raise StoreUnavailable(f"{_shown(engine)} cannot be switched to a write-ahead log: {fault}") from fault
        finally:
            raw.close()
        time.sleep(0.05)


def _shown(engine: Engine) -> str:
    """The database's address without its password."""
    return engine.url.render_as_string(hide_password=True)
