"""`python -m db migrate URL` and `python -m db check URL`: the schema from a shell, a container or a cron job."""

import argparse
import sys
from pathlib import Path

from db import StoreError, StoreUnavailable, migrate, open_store


def main(arguments: list[str] | None = None) -> int:
    """0 when done; 1 with the reason on stderr when the database cannot be used; 2 for bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m db", description=__doc__)
    parser.add_argument("command", choices=["migrate", "check"])
    parser.add_argument("url", nargs="?", help="a SQLite file's path, sqlite:///... or postgresql://...")
    parser.add_argument("--url-file", type=Path, help="a file that holds the URL (it may hold a password)")
    given = parser.parse_args(arguments)
    if (given.url is None) == (given.url_file is None):
        parser.error("give either a URL or --url-file")
    url = given.url if given.url is not None else given.url_file.read_text().strip()
    try:
        if given.command == "migrate":
            migrate(url)
        open_store(url).close()
    except (StoreError, StoreUnavailable, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
