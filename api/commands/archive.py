"""`tilewright archive`: records and winners from one site's database to another's, as one file."""

import time
from pathlib import Path
from typing import Annotated

import typer

from api.archive import BadArchive, read_archive, write_archive
from api.commands.database import open_database
from db.travel import BadContent
from tilewright.cli.connect import AsJson, Db
from tilewright.cli.errors import fail, print_json, shown
from tuner.views import NotFound

archive_app = typer.Typer(no_args_is_help=True, help="Carry records and winners between sites, as one checked file.")


@archive_app.command("export")
@shown
def export(
    file: Annotated[Path, typer.Argument(help="the archive to write")],
    job: Annotated[list[str] | None, typer.Option("--job", help="only this job; may be repeated")] = None,
    winners_only: Annotated[bool, typer.Option("--winners-only", help="leave out the records")] = False,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Write the records and winners of the jobs that have ended."""
    store = open_database(db)
    try:
        carried = write_archive(store, file, job or None, time.time(), not winners_only)
    except (NotFound, OSError) as fault:
        fail(str(fault))
    finally:
        store.close()
    if as_json:
        print_json({"file": str(file), "jobs": carried.jobs, "records": carried.records})
    else:
        print(f"{file}: {carried.jobs} jobs, {carried.records} records")


@archive_app.command("import")
@shown
def import_(
    file: Annotated[Path, typer.Argument(help="an archive of another site (its winners are code: trust that site)")],
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Add what an archive holds and this database does not. Doing it again changes nothing."""
    store = open_database(db, migrate=True)
    try:
        carried = read_archive(store, file)
    except (BadArchive, BadContent, OSError) as fault:
        fail(str(fault))
    finally:
        store.close()
    if as_json:
        print_json({"jobs": carried.jobs, "records": carried.records, "added": carried.added})
    else:
        print(f"{carried.added} of {carried.jobs} jobs added; the others were here already")


def add(app: typer.Typer) -> None:
    """Entry point of the group tilewright.commands."""
    app.add_typer(archive_app, name="archive")
