"""Brings up a sandbox and an Airflow beside it, runs an example DAG in them, and shows how it goes on."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from sandbox.airflow.api import DagRun
from sandbox.airflow.beside import DAGS, Airflow
from sandbox.control import command_line
from sandbox.demo import view
from sandbox.demo.watched import Watched
from sandbox.errors import SandboxError
from sandbox.lifecycle import Progress, Sandbox
from sandbox.settings import Settings


@dataclass(frozen=True)
class Shown:
    """An example DAG that can be shown."""

    dag_id: str
    #: GPUs that each of its jobs asks of a node.
    gpus: int
    #: Whether its tasks run on nodes, which then have to see Airflow.
    on_nodes: bool = False


#: By the executor of its tasks.
SHOWN = {"local": Shown("train_pipeline", 8), "slurm": Shown("tune", 1, on_nodes=True)}
#: The task whose result is the run's.
LAST_TASK = "best"
#: Seconds that a run may take on a machine that is busy with other things.
TIMEOUT = 1200
#: Lines of a failed task's log that are shown.
LAST_LINES = 30


def visible(name: str) -> list[str]:
    """The folders that nodes need to see for Airflow's tasks: packages and DAGs, and Airflow's own."""
    return [sys.prefix, str(DAGS.parent), str(Settings(name=name).paths.airflow)]


def check(settings: Settings, shown: Shown) -> None:
    """Refuse a sandbox in which the DAG could not run, before anything is started."""
    if not DAGS.is_dir():
        raise SandboxError("the example DAGs are not installed with the sandbox", "run `make demo` in a clone")
    if settings.gpus < shown.gpus:
        raise SandboxError(f"{shown.dag_id} asks for {shown.gpus} GPUs of a node", f"use --gpus {shown.gpus} or more")


def run(
    sandbox: Sandbox, shown: Shown, console: Console, progress: Callable[[], AbstractContextManager[Progress]]
) -> None:
    """Everything from nothing to the result. What fails is left for whoever wants to look at it."""
    with _undone_on_interrupt(sandbox):
        with _timed(console, "Slurm"), progress() as report:
            sandbox.up(report)
        # What was wrong with the DAG before that may have been corrected.
        airflow, since = Airflow(sandbox), datetime.now(timezone.utc)
        with _timed(console, "Airflow"), progress() as report:
            airflow.up(report)
            airflow.wait_for_dag(shown.dag_id, since)
        started = DagRun(airflow.api, shown.dag_id, airflow.api.trigger(shown.dag_id, {}))
        console.print(f"[bold]{shown.dag_id}[/] runs: {started.page}\n")
        watched = Watched(started, sandbox)
        end = view.follow(watched.look, console, TIMEOUT)
        if end.state != "success":
            for task, lines in watched.log_of_failed(LAST_LINES).items():
                console.print(f"[red]The end of the log of {task}[/]")
                console.print("\n".join(f"  {line}" for line in lines), markup=False)
            what = "has failed" if end.state == "failed" else f"has not ended within {TIMEOUT} s"
            raise SandboxError(f"the run {what}", f"see {started.page}")
        console.print(f"[bold]Result[/]: what the task {LAST_TASK} has returned")
        for name, value in started.xcom(LAST_TASK).items():
            console.print(f"  {name:<14} {value:.4g}")
        _what_next(sandbox, shown, airflow, console)


def _what_next(sandbox: Sandbox, shown: Shown, airflow: Airflow, console: Console) -> None:
    name = sandbox.settings.name
    others = ", ".join(sorted(file.stem for file in DAGS.glob("*.py") if file.stem != shown.dag_id))
    console.print(
        f"\nBoth stay up.\n"
        f"  Airflow   {airflow.home.url}   no login needed; try {others}, or a DAG of yours in {DAGS}\n"
        f"  Slurm     {_typed('shell', name)}   or {_typed('status', name)}\n"
        f"  stop it   {_typed('down', name)}"
    )


def _typed(command: str, name: str) -> str:
    """A command with the Python of this environment, which need not be the one on the PATH."""
    own = Path(sys.executable)
    if shutil.which("python") == str(own):
        return command_line(command, name)
    python = own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own
    return command_line(command, name).replace("python", str(python), 1)


@contextmanager
def _timed(console: Console, what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    console.print(f"{what} is up [dim]({time.monotonic() - started:.0f} s)[/]")


@contextmanager
def _undone_on_interrupt(sandbox: Sandbox) -> Iterator[None]:
    """Of what was not there before nothing is left; what was there stays as it is."""
    airflow = Airflow(sandbox)
    had_sandbox, had_airflow = sandbox.paths.settings.exists(), airflow.exists
    try:
        yield
    except KeyboardInterrupt:
        if not had_sandbox:
            sandbox.down()
        elif not had_airflow:
            airflow.remove()
        raise
