"""A pipeline whose first task is told to end while it submits the jobs of the others."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.settings import ENVIRONMENT
from tests.airflow.pipelines import HEAD, Pipeline
from tests.airflow.stack import Stack
from tests.integration.cluster import LOGIN, Cluster
from tests.submissions import WITHDRAWALS, is_submitting, withdrawn_keys

BODY = """
with SbatchPipeline("chain"):
    job("a") >> job("b")
"""
OPTIONS = "default_args={'poll_interval': 1, 'retries': 1, 'retry_delay': timedelta(seconds=1)}"


def test_its_jobs_are_withdrawn_and_the_next_try_submits_them(stack: Stack, slurm: Cluster) -> None:
    dag = stack.add_dag("submits", BODY, head=HEAD, dag_options=OPTIONS)
    with no_submission_goes_on(slurm):
        run = dag.trigger()
        slurm.wait("the submission has begun", lambda: is_submitting(slurm))
        before = withdrawn_keys(slurm)
        os.kill(run.task("chain.submit")["pid"], signal.SIGTERM)
        slurm.wait("it is withdrawn", lambda: len(withdrawn_keys(slurm) - before) == 2)
    run.wait_log("chain.submit", "told to end while it submitted", number=1)
    pipeline = Pipeline(run, slurm, "chain")
    pipeline.wait_ends()
    assert pipeline.states() == {"a": "success", "b": "success"}
    assert run.task("chain.submit")["try_number"] == 2
    # The first try has submitted none.
    assert [[job.state for job in pipeline.jobs(stage)] for stage in "ab"] == [["COMPLETED"], ["COMPLETED"]]


@contextmanager
def no_submission_goes_on(slurm: Cluster) -> Iterator[None]:
    """Hold the lock that submissions wait for."""
    program = f"mkdir -p {WITHDRAWALS}; exec flock {WITHDRAWALS}/../submit.lock sh -c 'echo; read _'"
    command = slurm.sandbox.init.enter(LOGIN, ["sh", "-c", program])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT | {"HOME": "/root"}
    ) as holder:
        assert holder.stdin
        assert holder.stdout
        try:
            holder.stdout.readline()
            yield
        finally:
            holder.stdin.close()
