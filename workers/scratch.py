"""Folders that live as long as the process that made them; those of processes that were killed are swept away."""

import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path

_NAME = re.compile(r"tw-(\d+)-")  # short: names of sockets below it are limited to 107 bytes


def make_scratch(parent: Path, owner: object) -> Path:
    """A fresh folder of this process in `parent`; removed with `owner`, or at exit."""
    folder = tempfile.mkdtemp(prefix=f"tw-{os.getpid()}-", dir=parent)
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def sweep(parent: Path) -> None:
    """Remove what processes of this user that no longer run left behind (kill -9 leaves no time to tidy up)."""
    for folder in parent.glob("tw-*"):
        match = _NAME.match(folder.name)
        try:
            if match and folder.stat().st_uid == os.getuid() and not Path(f"/proc/{match[1]}").exists():
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:
            continue  # another process swept it first
