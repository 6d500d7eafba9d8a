"""The database as a command opens it: whatever is wrong with it is one line for the user, never a traceback."""

from api.defaults import default_database_url
from api.wiring import build_store
from db import SqlStore
from db.errors import StoreError, StoreUnavailable
from tilewright.cli.errors import BAD_ARGUMENTS, FAILED, Refused


def open_database(url: str | None, migrate: bool = False) -> SqlStore:
    """The store at `url` or at the default place. Refused where it is no database, damaged, foreign or unreachable."""
    try:
        return build_store(url or default_database_url(), migrate=migrate)
    except (StoreError, StoreUnavailable) as fault:
        raise Refused(str(fault), FAILED) from fault
    except ValueError as fault:
        raise Refused(f"--db: {fault}", BAD_ARGUMENTS) from fault
    except OSError as fault:
        raise Refused(f"the database cannot be opened: {fault}", FAILED) from fault
