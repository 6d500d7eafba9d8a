"""Opens a store: the one door from a URL to an `SqlStore`."""

from db import schema
from db.blobs import ArtifactTable
from db.engine import Transactions, make_engine, parse_url
from db.sketch_versions import SketchVersion, registered
from db.store import SqlStore
from tuner.ports import Clock


def open_store(
    url: str, *, migrate: bool = False, clock: Clock | None = None, sketch_version: SketchVersion = registered
) -> SqlStore:
    """The store at `url`: a SQLite file's path, sqlite:///..., or postgresql://...

    `migrate` brings the schema up to date first (and creates a SQLite file); safe from several processes at once.
    `clock` is for tests: without one, leases go by the database's time on PostgreSQL and the host's on SQLite.
    `sketch_version` says which version of a sketch is today's, so that older schedules are called stale.
    Raises ValueError (not such a URL), StoreUnavailable, StoreDamaged, SchemaMismatch; overwrites nothing.
    """
    parsed = parse_url(url)
    if migrate:
        schema.migrate(url)
    engine = make_engine(parsed)
    try:
        schema.check_schema(engine)
    except BaseException:
        engine.dispose()
        raise
    return SqlStore(Transactions(engine, clock), ArtifactTable(), sketch_version)
