"""A PostgreSQL for Airflow, where SQLite and its one writer at a time would be in the way: the one of this machine."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sandbox import daemons
from sandbox.errors import SandboxError
from sandbox.lifecycle import Sandbox
from sandbox.settings import LOOPBACK

#: Where Debian has a folder for each version.
_PROGRAMS = Path("/usr/lib/postgresql")
#: It refuses to run as root.
_AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
#: For one short life: in no hurry to reach the disk, and reached over the loopback only.
_OPTIONS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
}


def start(sandbox: Sandbox, niceness: int = 0) -> str:
    """Start one that ends with the sandbox, and return the URL that Airflow needs."""
    port = sandbox.settings.ports.database
    programs = _programs()
    # Not in the sandbox's folder, which only root may enter.
    folder = Path(tempfile.mkdtemp(prefix=f"airflow-database-{os.getpid()}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.chown(folder, "postgres", "postgres")
    made = [str(programs / "initdb"), "--auth=trust", "--username=airflow", "--no-sync", f"--pgdata={folder}"]
    said = subprocess.run([*_AS_POSTGRES, *made], cwd="/", capture_output=True, text=True, check=False)
    if said.returncode:
        raise SandboxError(f"initdb failed ({daemons.complaint(said.stderr)})", "see whether its package is whole")
    settings = [f"--{name}={value}" for name, value in {**_OPTIONS, "port": port}.items()]
    first = ["nice", f"--adjustment={niceness}", *_AS_POSTGRES]
    sandbox.init.start("postgres", [*first, str(programs / "postgres"), "-D", str(folder), *settings])
    ready = [str(programs / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(port)]
    daemons.wait_for(
        lambda: subprocess.run(ready, check=False).returncode == 0,
        "PostgreSQL does not come up",
        lambda: not sandbox.init.processes()["postgres"]["pid"],
        sandbox.paths.logs / "postgres.log",
    )
    return f"postgresql+psycopg2://airflow@{LOOPBACK}:{port}/postgres"


def _programs() -> Path:
    """The folder of the newest PostgreSQL of this machine."""
    found = sorted(_PROGRAMS.glob("*/bin/postgres"), key=lambda program: int(program.parts[-3]))
    if not found:
        raise SandboxError("there is no PostgreSQL on this machine", "run `apt-get install postgresql`")
    return found[-1].parent
