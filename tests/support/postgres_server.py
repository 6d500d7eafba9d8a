"""A real PostgreSQL server for the tests: its own data folder, a free loopback port, gone when the tests end."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

INSTALL = "apt-get install -y --no-install-recommends postgresql"
# PostgreSQL refuses to run as root: where the tests do, the server gets a user of its own.
USER = "tilewright-postgres"
DATABASE_ROLE = "tilewright"
_FAST = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "shared_buffers=64MB", "max_connections=200")


class PostgresMissing(RuntimeError):
    """The server cannot be started here; the message says what to install."""


class PostgresServer:
    """Started by `start`, ended by `stop`. Every database on it is thrown away with its folder."""

    def __init__(self, settings: Sequence[str] = _FAST) -> None:
        """`settings`: a server that is to be killed must not be told to forget (`synchronous_commit=off`)."""
        self._settings = settings
        self._programs = _find_programs()
        self._as_user = _unprivileged_user()
        self._folder = Path(tempfile.mkdtemp(prefix="tilewright-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> None:
        if self._as_user is not None:
            os.chown(self._folder, self._as_user, -1)
        data = self._folder / "data"
        initdb = [str(self._programs / "initdb"), "-D", str(data), "-U", DATABASE_ROLE, "--auth=trust", "--no-sync"]
        made = subprocess.run([*initdb, "-E", "UTF8", "--locale=C"], capture_output=True, text=True, **self._identity())
        if made.returncode:
            raise PostgresMissing(f"initdb failed: {made.stderr.strip()}")
        for _ in range(3):  # another program may take the port between its choice and its use
            self.port = _free_port()
            if self._serve(data):
                return
        raise PostgresMissing(f"the server did not start: {self._log()}")

    @property
    def pid(self) -> int | None:
        """The server's first process; None when it has ended."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start_again(self) -> bool:
        """After it was killed: on the same data and the same port. False where it did not come up within a minute."""
        (self._folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        return self._serve(self._folder / "data")

    def _serve(self, data: Path) -> bool:
        settings = (*self._settings, "listen_addresses=127.0.0.1", f"unix_socket_directories={self._folder}")
        command = [str(self._programs / "postgres"), "-D", str(data), "-p", str(self.port)]
        for setting in settings:
            command += ["-c", setting]
        if setpriv := shutil.which("setpriv"):  # the server ends with the tests even if they are killed
            command = [setpriv, "--pdeathsig", "INT", *command]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, cwd=self._folder, **self._identity()
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
                return True
            except psycopg.OperationalError:
                time.sleep(0.1)
        return False

    def _identity(self) -> dict[str, object]:
        return {} if self._as_user is None else {"user": self._as_user, "group": self._group(), "extra_groups": []}

    def _group(self) -> int:
        return pwd.getpwnam(USER).pw_gid

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-2000:]

    def url(self, database: str) -> str:
        return f"postgresql://{DATABASE_ROLE}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str = "template0") -> str:
        """The URL of a new database, a copy of `template`."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # fast shutdown
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _find_programs() -> Path:
    versions = sorted(
        (p for p in Path("/usr/lib/postgresql").glob("*/bin") if (p / "initdb").exists()),
        key=lambda p: int(p.parent.name) if p.parent.name.isdigit() else 0,
    )
    if versions:
        return versions[-1]
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    raise PostgresMissing(f"PostgreSQL's server programs are missing: {INSTALL}")


def _unprivileged_user() -> int | None:
    """None where the tests do not run as root; else the uid of USER, made where it is missing."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(USER).pw_uid
    except KeyError:
        useradd = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", USER]
        made = subprocess.run(useradd, capture_output=True, text=True)
        try:
            return pwd.getpwnam(USER).pw_uid  # another test run may have made it at the same moment
        except KeyError:
            raise PostgresMissing(f"no user to run PostgreSQL as: {made.stderr.strip()}") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
