"""Scratch folders go with their owner; those of dead processes are swept, those of living ones are not."""

import subprocess
import sys
from pathlib import Path

from workers.scratch import make_scratch, sweep


class Owner:
    pass


def test_a_folder_goes_with_its_owner(tmp_path: Path) -> None:
    owner = Owner()
    folder = make_scratch(tmp_path, owner)
    (folder / "file").write_text("x")
    del owner
    assert not folder.exists()


def test_only_what_the_dead_left_is_swept(tmp_path: Path) -> None:
    owner = Owner()
    mine = make_scratch(tmp_path, owner)
    code = (
        "import os, sys; from pathlib import Path; from workers.scratch import make_scratch;"
        f"owner = type('Owner', (), {{}})(); print(make_scratch(Path({str(tmp_path)!r}), owner), flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    other = tmp_path / "tw-notes"
    other.mkdir()
    assert left.is_dir()
    sweep(tmp_path)
    assert not left.exists()
    assert mine.is_dir()
    assert other.is_dir()
