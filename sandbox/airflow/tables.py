"""The tables of a new Airflow: the first one of a version makes them, which takes seconds, and all others copy them."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from sandbox.errors import SandboxError
from sandbox.settings import home


def folder() -> Path:
    """Where they are kept."""
    return home() / "airflow-tables"


class Tables:
    """Those of one version in a new database: a file of SQLite's, or one of a PostgreSQL."""

    def __init__(self, version: str, url: str) -> None:
        self._url = urlsplit(url)
        self._kept = folder() / f"{version}.{self._url.scheme.partition('+')[0]}"

    def make(self, migrate: Callable[[], None]) -> None:
        """Fill the database. Of several that are new at once, one is migrated, and the others wait for it."""
        folder().mkdir(parents=True, exist_ok=True)
        with self._kept.with_name(f"{self._kept.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._kept.exists():
                migrate()
                partial = self._kept.with_name(f"{self._kept.name}.partial")
                self._save(partial)
                partial.replace(self._kept)
                return
        if self._is_file:
            shutil.copyfile(self._kept, self._url.path)
        else:
            self._run("psql", "--quiet", "--output=/dev/null", "--set=ON_ERROR_STOP=1", f"--file={self._kept}")

    @property
    def _is_file(self) -> bool:
        return self._url.scheme == "sqlite"

    def _save(self, file: Path) -> None:
        if self._is_file:
            shutil.copyfile(self._url.path, file)
        else:
            self._run("pg_dump", f"--file={file}")

    def _run(self, program: str, *options: str) -> None:
        where = [f"--host={self._url.hostname}", f"--port={self._url.port}", f"--username={self._url.username}"]
        words = [program, *where, f"--dbname={self._url.path.lstrip('/')}", *options]
        said = subprocess.run(words, capture_output=True, text=True, check=False)
        if said.returncode:
            last = said.stderr.strip().splitlines()[-1:]
            raise SandboxError(f"{program} failed ({''.join(last)})", f"remove {self._kept}, and try again")
