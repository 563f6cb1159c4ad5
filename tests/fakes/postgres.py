"""A real PostgreSQL for tests, in a folder of its own, as an unprivileged user, on a unix socket."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.postgres import environment, programs

_NOBODY = 65534
_STARTS_SECONDS = 60.0
PASSWORD = "s3cret/&word"


class PostgresServer:
    """One server. `url` is what a gateway is given; each `database` is empty and nobody else's."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._folder = folder
        self._durable = durable
        self._data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    def create(self) -> None:
        """Make its data folder. The password counts, as on a real server."""
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            "initdb", "-D", str(self._data), "-U", "tidepool", "-E", "UTF8", "--locale=C", "--no-sync",
            "-A", "scram-sha-256", f"--pwfile={secret}",
        )  # fmt: skip

    def start(self) -> None:
        """Run until `stop` or `kill`."""
        settings = (
            "listen_addresses=", f"unix_socket_directories={self._folder}", "max_connections=40", "jit=off",
        )  # fmt: skip
        if not self._durable:
            # A crash of its processes is survived without; the machine is not switched off. Measured are defaults.
            settings += ("fsync=off", "shared_buffers=16MB", "max_wal_size=64MB")
        command = [str(programs() / "postgres"), "-D", str(self._data)]
        for setting in settings:
            command += ["-c", setting]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as())
        self._await()

    def stop(self) -> None:
        """As an administrator restarts it: clients are cut, what is under way is undone."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As a crash: nothing is written any more; the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def database(self) -> str:
        """URL of a new database."""
        self._databases += 1
        name = f"runs{self._databases}"
        self.query(f"create database {name}")
        return self.url(name)

    def url(self, name: str, password: str = PASSWORD) -> str:
        """URL of a database."""
        quoted = password.replace("/", "%2F").replace("&", "%26")
        return f"postgresql://tidepool:{quoted}@/{name}?host={self._folder}"

    def query(self, statement: str, name: str = "postgres") -> list[Any]:
        """Ask it directly."""
        import psycopg

        where = {"host": str(self._folder), "user": "tidepool", "password": PASSWORD, "dbname": name}
        with psycopg.connect(**where, autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def _await(self) -> None:
        import psycopg

        assert self._process is not None
        until = time.monotonic() + _STARTS_SECONDS
        while True:
            try:
                self.query("select 1")
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self._folder / "log").read_text()
                assert time.monotonic() < until, "PostgreSQL does not answer"
                time.sleep(0.02)
            else:
                return

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(programs() / program), *arguments], capture_output=True, text=True, check=False, **self._as()
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _as(self) -> dict[str, Any]:
        """It refuses to run as root."""
        found: dict[str, Any] = {"env": environment(), "cwd": str(self._folder)}
        if os.geteuid() == 0:
            found |= {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        return found


@contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[PostgresServer]:
    """A running one, gone at the end. `durable`: it waits for the disk, as one that is measured must."""
    # Not pytest's folder, which other users may not enter; and a socket's path has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="tidepool-pg-", dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)
    server = PostgresServer(folder, durable=durable)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
