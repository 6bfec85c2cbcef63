"""What a round has to itself: a sandbox, or one with an Airflow beside it; the logs of a round that fails are kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sandbox.airflow import database
from sandbox.lifecycle import Sandbox
from sandbox.settings import Settings
from tests.airflow import executors
from tests.airflow.stack import Stack
from tests.integration.cluster import Cluster, check_ledger
from tests.sandboxes import kept_up
from tests.soak.rounds import Round

#: A world in which what takes minutes takes seconds, and whose queue forgets no job while a round lasts.
SOON: dict[str, Any] = {
    "resume_timeout": 30,
    "suspend_timeout": 1,
    "vm_boot": 0.5,
    "vm_lag": 1,
    "vm_removal": 0.5,
    "min_job_age": 7200,
}
#: Airflow takes for dead what is silent for a while, as it does for people, but sooner.
SILENT = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "30",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__TRIGGERER__RUNNER_HEALTH_CHECK_THRESHOLD": "30",
}
LEDGER = "the ledger is in order, and nothing was bought beside the block"


@contextmanager
def sandbox(round_: Round, **fields: Any) -> Iterator[Cluster]:
    """A sandbox of the round's own, whose ledger is proved to be in order at its end."""
    name = f"soak-{round_.scenario.replace('_', '-')}-{os.getpid()}"
    with kept_up(Settings(**{"name": name, "slurm": round_.slurm, **SOON, **fields})) as made:
        cluster = Cluster(made)
        try:
            with kept_logs(round_, made):
                yield cluster
                check_ledger(cluster.ledger())
                round_.checked[LEDGER] += 1
        finally:
            cluster.close()


@contextmanager
def airflow(round_: Round, *, on_nodes: bool = False, **fields: Any) -> Iterator[tuple[Stack, Cluster]]:
    """An Airflow on a sandbox, with a PostgreSQL in it; if need be, one whose tasks can run on nodes."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        visible = executors.visible(Path(folder)) if on_nodes else []
        with sandbox(round_, **{"workers": 4, "slurmd_timeout": 10, "visible": visible, **fields}) as cluster:
            url = database.start(cluster.sandbox)
            more = executors.options(cluster.sandbox, home) if on_nodes else {}
            with Stack(home, cluster.access["airflow_connections"] | SILENT | more, url) as stack:
                try:
                    yield stack, cluster
                except Exception:
                    keep(round_, home)
                    raise


@contextmanager
def kept_logs(round_: Round, made: Sandbox) -> Iterator[None]:
    """Keep what the sandbox has logged if the round fails, as all of it goes with the sandbox."""
    try:
        yield
    except Exception:
        keep(round_, made.paths.logs)
        keep(round_, made.paths.upper / "var/log/slurm")
        raise


def keep(round_: Round, folder: Path) -> None:
    kept = Path(tempfile.mkdtemp(prefix=f"soak-{round_.scenario}-"))
    shutil.copytree(folder, kept / folder.name, ignore_dangling_symlinks=True, dirs_exist_ok=True)
    round_.say(f"  logs are in {kept / folder.name}")
