"""A PostgreSQL server of the tests' own: in a temporary folder, reached over a socket in it, gone afterwards."""

import getpass
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

PORT = 5432

each_back_end = pytest.mark.parametrize("db", ["sqlite", "postgres"], indirect=True)
"""The test runs on a database of each kind."""


def binaries() -> Path:
    """The folder of the newest server's programs; the test is skipped without one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        pytest.skip("no PostgreSQL server is installed (initdb wasn't found)")
    return found[-1].parent if found else Path(str(on_path)).parent


def server_user() -> str | None:
    """The server refuses to run as root: then it runs as `postgres`. None: as whoever runs the tests."""
    if os.getuid() != 0:
        return None
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("the tests run as root, and there is no user `postgres` to run the server")
    return "postgres"


class Cluster:
    """A running server. `start`, `stop` and `restart` are for tests of what happens then."""

    def __init__(self, folder: Path, programs: Path, user: str | None) -> None:
        self.folder = folder
        self._programs = programs
        self._user = user
        self._numbers = itertools.count(1)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            user=self._user,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"

    def make(self) -> None:
        self._run("initdb", "-D", "data", "-U", "tests", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def start(self) -> None:
        # Nothing here has to outlive the machine, only the server: fsync stays off.
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c port={PORT} -c fsync=off"
        self._run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", "data", "-w", "-m", mode, "stop")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def url(self, database: str, host: Path | None = None) -> str:
        return f"postgresql://tests@/{database}?host={quote(str(host or self.folder), safe='')}&port={PORT}"

    def connect(self, database: str = "postgres") -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(self.url(database), autocommit=True)

    @contextmanager
    def database(self, options: str = "") -> Iterator[str]:
        """The URL of a new, empty database."""
        name = f"test{next(self._numbers)}"
        with self.connect() as db:
            db.execute(f"CREATE DATABASE {name} {options}")
        try:
            yield self.url(name)
        finally:
            with self.connect() as db:
                db.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def running() -> Iterator[Cluster]:
    """A new server, stopped and removed at the end."""
    programs, user = binaries(), server_user()
    with tempfile.TemporaryDirectory(prefix="aalis-pg-") as name:
        shutil.chown(name, user or getpass.getuser())
        cluster = Cluster(Path(name), programs, user)
        cluster.make()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop("immediate")
