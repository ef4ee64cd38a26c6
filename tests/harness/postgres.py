"""A PostgreSQL for tests: the real server on a free port, with a password, in a directory of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.harness.etcd import lasting_port
from tests.harness.process import eventually

USER: Final = "shop"
PASSWORD: Final = "let me in"
DATABASE: Final = "postgres"
DEADLINE_S: Final = 60.0


class PostgresMissing(Exception):
    """There is no server here that a test could start; the message says what is missing."""


class PostgresProcess:
    def __init__(self) -> None:
        self._programs = _find_programs()
        self._account = _account()
        self.port = lasting_port()
        # Not below the test's own directory, which only its user may enter.
        self.directory = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{DATABASE}"

    def start(self) -> None:
        password = self.directory / "password"
        password.write_text(f"{PASSWORD}\n")
        if self._account is not None:
            for path in (self.directory, password):
                shutil.chown(path, self._account)
        data = str(self.directory / "data")
        words = ["initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={password}"]
        made = self._run(*words, "--no-sync", "-E", "UTF8", "--locale=C")
        assert made.returncode == 0, made.stderr
        command = [str(self._programs / "postgres"), "-D", data, "-p", str(self.port), "-F"]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.directory}"]
        with (self.directory / "server.out").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=self._account,
                cwd=self.directory,
                start_new_session=True,
            )
        eventually(lambda: self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self.port)).returncode == 0)

    def query(self, sql: str) -> list[tuple[str, ...]]:
        """What psql prints for a statement, without Spark in between."""
        words = ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", DATABASE]
        answer = self._run(*words, "-At", "-F", "|", "-v", "ON_ERROR_STOP=1", "-c", sql)
        assert answer.returncode == 0, answer.stderr
        return [tuple(line.split("|")) for line in answer.stdout.splitlines()]

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            # Its fast way to stop: sessions are ended, nothing is waited for.
            self._process.send_signal(signal.SIGINT)
            self._process.wait(DEADLINE_S)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._programs / program), *words],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            user=self._account,
            cwd=self.directory,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "PGPASSWORD": PASSWORD},
        )


def _find_programs() -> Path:
    """Where the server's programs are: distributions keep them off the path."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    kept = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not kept:
        raise PostgresMissing("PostgreSQL is not installed: no initdb on the path or in /usr/lib/postgresql")
    return kept[-1].parent


def _account() -> str | None:
    """The user to run as: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise PostgresMissing("PostgreSQL does not run as root, and there is no other user to run it as")
