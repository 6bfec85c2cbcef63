"""A PostgreSQL for Airflow, as a Pod of the sandbox, where SQLite's one writer at a time would be in the way."""

from __future__ import annotations

from sandbox import daemons
from sandbox.lifecycle import Sandbox
from sandbox.settings import LOOPBACK

_POD = "database-0"
_FOLDER = "/var/lib/postgresql/airflow"
#: The package would make a cluster of its own.
_INSTALL = """\
set -e
mkdir -p /etc/postgresql-common
echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends postgresql
ln -s /usr/lib/postgresql/*/bin/initdb /usr/lib/postgresql/*/bin/postgres /usr/bin/
"""
_AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]


def start(sandbox: Sandbox) -> str:
    """Install it in the sandbox's own layer of its root, start it there, and return the URL that Airflow needs."""
    port = sandbox.settings.ports.database
    _run(sandbox, ["sh", "-c", _INSTALL])
    _run(sandbox, [*_AS_POSTGRES, "initdb", "--auth=trust", "--username=airflow", f"--pgdata={_FOLDER}"])
    options = ["-D", _FOLDER, "-h", LOOPBACK, "-p", str(port)]
    sandbox.init.start("postgres", [*_AS_POSTGRES, "postgres", *options], hostname=_POD)
    daemons.wait_for(
        lambda: sandbox.init.run("sshd", ["pg_isready", "-h", LOOPBACK, "-p", str(port)]).returncode == 0,
        120,
        "PostgreSQL does not come up",
        lambda: not sandbox.init.processes()["postgres"]["pid"],
        sandbox.paths.logs / "postgres.log",
    )
    return f"postgresql+psycopg2://airflow@{LOOPBACK}:{port}/postgres"


def _run(sandbox: Sandbox, words: list[str]) -> None:
    said = sandbox.init.run("sshd", words, timeout=300)
    assert said.returncode == 0, said.stderr
