"""A runner as `python -m api.runner` starts it, with a ledger between it and its store: for `benchmarks.chaos`."""

import sys
from pathlib import Path

from api.runner.__main__ import main
from benchmarks.chaos_ledger import Ledger, LedgerStore

if __name__ == "__main__":
    folder, *rest = sys.argv[1:]
    ledger = Ledger(Path(folder), "runner")
    sys.exit(main(rest, watched=lambda store: LedgerStore(store, ledger)))  # type: ignore[arg-type,return-value]
