"""Whatever a user points a command at: one line that says what is wrong, the right exit status, nothing on stdout."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHAPE = ["gemm", "--m", "7", "--n", "7", "--k", "7"]
TEXT = b"this is a letter to my aunt, and no database at all\n" * 40


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    places = {"TILEWRIGHT_DATA": str(folder / "data"), "TILEWRIGHT_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "tilewright", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **places},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], status: int, message: str) -> None:
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["best", *SHAPE], ["tune", *SHAPE], ["replay", "1"], ["serve", "--port", "0"]])
def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "letter.db"
    file.write_bytes(TEXT)
    refused(run(tmp_path, *command, "--db", str(file)), 1, "is not a SQLite database: restore it from a backup or move")
    assert file.read_bytes() == TEXT
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("letter")] == ["letter.db"]


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (["jobs", "--db", "mysql://host/name"], 2, "must be sqlite or postgresql"),
        (["jobs", "--db", "/proc/nowhere/a.db"], 1, "cannot be opened"),
        (["jobs", "--db", "postgresql://nobody@127.0.0.1:1/none"], 1, "PostgreSQL cannot be used now"),
        (["jobs", "--url", "http://[::1"], 2, "not a URL"),
        (["jobs", "--url", "127.0.0.1:8400"], 2, "--url"),
        (["tune", *SHAPE, "--seconds", "nan"], 2, "max_seconds: must be a finite number"),
        (["worker", "--ray", "nonsense"], 2, "must be HOST:PORT"),
        (["serve", "--port", "99999999"], 2, "--port"),
        (["tune", "suite", "/nowhere.json"], 2, "/nowhere.json"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, command: list[str], status: int, message: str) -> None:
    refused(run(tmp_path, *command), status, message)


def test_a_port_in_use_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused(run(tmp_path, "serve", "--port", port), 1, f"cannot listen on 127.0.0.1, port {port}")


def test_a_cache_folder_that_cannot_be_written_is_told_at_start(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    refused(run(tmp_path, "serve", "--port", "0"), 1, "set TILEWRIGHT_CACHE")


@pytest.mark.parametrize("number", ["-1", "99999999999999999999999", "1.5", "x"])
def test_a_trial_that_no_database_could_hold_is_refused(tmp_path: Path, number: str) -> None:
    refused(run(tmp_path, "replay", "--", number), 2, "Invalid value for 'trial'")
