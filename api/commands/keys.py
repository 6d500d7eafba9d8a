"""`tilewright keys`: make, list and revoke API keys, on the database itself (so the first one needs no key)."""

from typing import Annotated

import typer

from api.commands.database import open_database
from api.present import instant
from tilewright.cli.connect import AsJson, Db
from tilewright.cli.errors import BAD_ARGUMENTS, fail, print_json, shown
from tuner.access import KeyLimits, KeyView, Scope
from tuner.views import NotFound

keys_app = typer.Typer(no_args_is_help=True, help="API keys: make, list, revoke.")
_DEFAULT = KeyLimits()


def _limit(value: int) -> int | None:
    """0 on the command line is no limit."""
    return None if value == 0 else value


def _body(key: KeyView) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "scope": key.scope.value,
        "limits": dict(vars(key.limits)),
        "created_at": instant(key.created_at).isoformat(),
        "revoked_at": None if key.revoked_at is None else instant(key.revoked_at).isoformat(),
    }


@keys_app.command()
@shown
def create(
    name: Annotated[str, typer.Option(help="whose it is, for people")],
    scope: Annotated[Scope, typer.Option(help="read; submit (and read); admin (all)")] = Scope.SUBMIT,
    requests_per_minute: Annotated[int, typer.Option(min=0, help="0: no limit")] = _DEFAULT.requests_per_minute or 0,
    open_jobs: Annotated[int, typer.Option(min=0, help="unfinished jobs at a time; 0: no limit")] = (
        _DEFAULT.open_jobs or 0
    ),
    open_trials: Annotated[int, typer.Option(min=0, help="trials they may still measure; 0: no limit")] = (
        _DEFAULT.open_trials or 0
    ),
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, this once: only its hash is kept."""
    if not name.strip() or len(name) > 200:
        fail("--name: must have 1 to 200 characters", BAD_ARGUMENTS)
    try:
        limits = KeyLimits(_limit(requests_per_minute), _limit(open_jobs), _limit(open_trials))
    except ValueError as fault:
        fail(str(fault), BAD_ARGUMENTS)
    store = open_database(db, migrate=True)
    try:
        view, key = store.create_key(name.strip(), scope, limits)
    finally:
        store.close()
    if as_json:
        print_json({**_body(view), "key": key})
    else:
        print(key)


@keys_app.command("list")
@shown
def list_keys(db: Db = None, as_json: AsJson = False) -> None:
    """The keys that were made, revoked ones too."""
    store = open_database(db, migrate=True)
    try:
        items = [_body(key) for key in store.api_keys()]
    finally:
        store.close()
    if as_json:
        print_json(items)
        return
    for item in items:
        state = f"revoked {item['revoked_at']}" if item["revoked_at"] else "active"
        print(f"{item['id']}  {item['scope']:<6}  {state:<8}  {item['name']}")


@keys_app.command()
@shown
def revoke(key_id: Annotated[str, typer.Argument(help="the key's id, as `list` shows it")], db: Db = None) -> None:
    """Take a key back for good. A running service refuses it within 5 seconds."""
    store = open_database(db, migrate=True)
    try:
        view = store.revoke_key(key_id)
    except NotFound as fault:
        fail(str(fault))
    finally:
        store.close()
    print(f"{view.id} ({view.name}) is revoked")


def add(app: typer.Typer) -> None:
    """Entry point of the group tilewright.commands."""
    app.add_typer(keys_app, name="keys")
