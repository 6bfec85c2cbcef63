"""A whole Airflow, on PostgreSQL, beside a sandbox all of whose nodes are on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sandbox import access
from sandbox.airflow import database
from sandbox.airflow.beside import Airflow
from sandbox.lifecycle import Sandbox
from sandbox.settings import USER, Settings

_REPOSITORY = Path(__file__).parents[1]


@contextmanager
def airflow_beside(
    name: str,
    dags: Path,
    dag_ids: Sequence[str],
    more: Mapping[str, str],
    *,
    user: str = USER,
    visible: Sequence[str] = (),
) -> Iterator[tuple[Sandbox, Airflow]]:
    """``more`` are settings of Airflow's; ``visible`` are folders that nodes see, too."""
    # No node has to be waited for.
    conf = ["PrologSlurmctld=/bin/true"]
    sandbox = Sandbox(Settings(name=name, workers=1, static=2, slurm_conf=conf, visible=list(visible)))
    try:
        sandbox.up()
        facts = access.describe(sandbox.settings)
        own = {
            **access.connections({**facts, "ssh": {**facts["ssh"], "user": user}}),
            "PYTHONPATH": str(_REPOSITORY),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.start(sandbox),
        }
        airflow = Airflow(sandbox, dags, {**own, **more})
        airflow.up(lambda share, label: None)
        for dag_id in dag_ids:
            airflow.wait_for_dag(dag_id)
        yield sandbox, airflow
    finally:
        sandbox.down()
