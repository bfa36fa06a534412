"""Real database servers for tests: initialised once, on loopback, stopped by process id."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.machine import which

__all__ = ["MariaDB", "PostgreSQL", "Server"]

_TRIES_S = 120.0
_OWN_IO = "--innodb-use-native-aio=0"  # the system has few of the others


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A database server of our own; ``start`` and ``stop`` may be called again and again."""

    name = ""
    ends = signal.SIGTERM

    def __init__(self, *, durable: bool = False) -> None:
        self.engine = durable  # whether a commit is on disk when it returns
        self.folder = Path(tempfile.mkdtemp(prefix=f"cw-{self.name}-"))
        self.folder.chmod(0o755)
        self.port = free_port()
        self.process: subprocess.Popen | None = None
        self.made = 0
        try:
            self.initialise()
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start it, again if need be: after a loss of power its old processes may still be ending."""
        end = time.monotonic() + _TRIES_S
        self.process = self.launch()
        while not self.answers():
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not start: {(self.folder / 'output').read_text()[-2000:]}")
            time.sleep(0.05)
            if self.process.poll() is not None:
                time.sleep(0.5)
                self.process = self.launch()

    def launch(self) -> subprocess.Popen:
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                self.command(), stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def stop(self, *, hard: bool = False) -> None:
        """Stop it in order, or as a loss of power would."""
        if self.process is None:
            return
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL if hard else self.ends)
        try:
            self.process.wait(_TRIES_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.process = None

    def pids(self) -> list[int]:
        return [self.process.pid]

    def close(self) -> None:
        self.stop(hard=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def answers(self) -> bool:
        try:
            with self.connection():
                return True
        except Exception:  # whatever a driver says while the server starts
            return False


class MariaDB(Server):
    name = "mariadb"

    @staticmethod
    def missing() -> str | None:
        for program in ("mariadbd", "mariadb-install-db"):
            if which("database", program, _PATH) is None:
                return f"{program} is not installed"
        return None

    def user(self) -> str:
        import getpass

        return getpass.getuser()

    def initialise(self) -> None:
        for _ in range(3):  # beside other servers the system may be out of what it needs for a moment
            done = subprocess.run(
                [shutil.which("mariadb-install-db", path=_PATH), "--no-defaults", f"--user={self.user()}",
                 f"--datadir={self.folder}/data", "--auth-root-authentication-method=normal", "--skip-test-db",
                 _OWN_IO],
                check=False, capture_output=True, text=True, timeout=600,
            )  # fmt: skip
            if done.returncode == 0:
                return
            shutil.rmtree(self.folder / "data", ignore_errors=True)
            time.sleep(1)
        raise RuntimeError(f"MariaDB cannot be initialised: {(done.stdout + done.stderr)[-3000:]}")

    def command(self) -> list[str]:
        return [
            shutil.which("mariadbd", path=_PATH), "--no-defaults", f"--user={self.user()}",
            f"--datadir={self.folder}/data", f"--socket={self.folder}/socket", "--bind-address=127.0.0.1",
            f"--port={self.port}", f"--pid-file={self.folder}/pid",
            f"--innodb-flush-log-at-trx-commit={1 if self.engine else 2}",
            "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--skip-log-bin", "--skip-name-resolve",
            _OWN_IO,
        ]  # fmt: skip

    def connection(self):
        import pymysql

        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=60, autocommit=True)

    def database(self) -> str:
        """Make an empty database; returns its address."""
        self.made += 1
        with self.connection() as c, c.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE t{self.made}")
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/t{self.made}"

    def drop(self, address: str) -> None:
        with self.connection() as c, c.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {address.rpartition('/')[2]}")


class PostgreSQL(Server):
    name = "postgresql"
    ends = signal.SIGINT  # SIGTERM waits until all have gone

    @staticmethod
    def programs() -> str:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
        return os.pathsep.join([*(str(path) for path in reversed(found)), _PATH])

    @classmethod
    def missing(cls) -> str | None:
        for program in ("initdb", "postgres"):
            if which("database", program, cls.programs()) is None:
                return f"{program} of PostgreSQL is not installed"
        if os.geteuid() == 0 and shutil.which("runuser", path=_PATH) is None:
            return "PostgreSQL does not run as root, and runuser is not installed"
        return None

    def program(self, name: str) -> list[str]:
        path = shutil.which(name, path=self.programs())
        if os.geteuid() != 0:
            return [path]
        return [shutil.which("runuser", path=_PATH), "-u", "postgres", "--", path]

    def initialise(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres")
        subprocess.run(
            [*self.program("initdb"), "-D", f"{self.folder}/data", "-A", "trust", "-U", "postgres", "-N",
             "--locale=C", "-E", "UTF8"],
            check=True, capture_output=True, timeout=600, cwd="/",
        )  # fmt: skip

    def command(self) -> list[str]:
        return [
            *self.program("postgres"), "-D", f"{self.folder}/data", "-p", str(self.port), "-h", "127.0.0.1",
            "-k", str(self.folder), "-c", f"fsync={'on' if self.engine else 'off'}", "-c", "shared_buffers=64MB",
        ]  # fmt: skip

    def pids(self) -> list[int]:
        """Return the server, not the ``runuser`` that waits for it."""
        file = self.folder / "data" / "postmaster.pid"
        return [int(file.read_text().splitlines()[0])] if file.exists() else super().pids()

    def connection(self):
        import psycopg

        return psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres", connect_timeout=60, autocommit=True
        )

    def database(self, encoding: str = "UTF8") -> str:
        """Make an empty database; returns its address."""
        self.made += 1
        with self.connection() as c:
            c.execute(f"CREATE DATABASE t{self.made} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/t{self.made}"

    def drop(self, address: str) -> None:
        with self.connection() as c:
            c.execute(f"DROP DATABASE {address.rpartition('/')[2]} WITH (FORCE)")


_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"])
