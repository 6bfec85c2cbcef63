"""Runs tasks on a node: the script of their job, which Airflow's Python on the cluster executes.

Its arguments are the folder of the workloads, and the names of their files in it. Of several it imports Airflow once,
and forks for each, as many at a time as the job has CPUs. It runs with nothing of this provider installed.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import sys
from pathlib import Path

#: Exit codes, as of sysexits.h: the file of the workload is gone; the API server was not reached; the token was
#: refused; Airflow is not installed.
GONE, UNREACHED, REFUSED, UNFIT = 66, 75, 77, 78
#: The task was cleared, marked or started elsewhere since: nothing was run.
NOT_WANTED = 79
#: The end of the name of a file beside that of a workload: this job must not start it, as another one will.
WITHDRAWN = ".withdrawn"


def main(folder: str, names: list[str]) -> int:
    try:
        _prepare()
    except ImportError as error:
        print(f"{sys.executable} cannot import Airflow: {error}", flush=True)
        return UNFIT
    # As in an environment that is activated: tasks call its programs.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    # An array's script has no path by which a process that a task spawns could find it.
    globals().pop("__file__", None)
    if len(names) == 1:
        return _run(Path(folder, names[0]))
    waiting, running, codes = names[::-1], set[int](), list[int]()
    # Slurm signals all processes of a job, and kills what is left of them once this one has ended.
    signal.signal(signal.SIGTERM, lambda *_: waiting.clear())
    while waiting or running:
        while waiting and len(running) < int(os.environ.get("SLURM_CPUS_ON_NODE", "1")):
            name = waiting.pop()
            if child := os.fork():
                running.add(child)
            else:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os._exit(_run(Path(folder, name)))
        child, status = os.wait()
        running.discard(child)
        codes.append(os.waitstatus_to_exitcode(status) % 256)
    # A task that did not report is found by its state. What was wanted has been run.
    return (
        NOT_WANTED if set(codes) == {NOT_WANTED} else next((code for code in codes if code not in (0, NOT_WANTED)), 0)
    )


#: What a task imports, of which those in one job have one copy.
_NEEDED = (
    "airflow.executors.workloads",
    "airflow.executors.base_executor",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "airflow.dag_processing.dagbag",
    "airflow.sdk.definitions.decorators.setup_teardown",
)


def _prepare() -> None:
    """Import what each task needs."""
    # To look for garbage meanwhile takes a fifth of the time, and what is frozen is shared with what is forked.
    gc.disable()
    for name in _NEEDED:
        importlib.import_module(name)
    import setproctitle
    from airflow.sdk.log import configure_logging
    from airflow.settings import dispose_orm

    # Slurm finds the processes of a job by /proc/PID/stat where it has no cgroups, and is misled by blanks in a title.
    entitle = setproctitle.setproctitle
    setproctitle.setproctitle = lambda title: entitle(title.replace(" ", "_"))
    wait_for_nothing_briefly()
    dispose_orm(do_log=False)
    configure_logging(output=sys.stdout.buffer, json_output=True)
    gc.freeze()
    gc.enable()


def wait_for_nothing_briefly() -> None:
    """Have selectors with nothing to select from return soon.

    The pipes of a task close a moment before its process has ended. Airflow's supervisor, if it looks in between, would
    wait for these for 5 seconds more, in Airflow 3.4 up to a minute where the task was told to end.
    """
    select = selectors.DefaultSelector.select

    def brief(self: selectors.DefaultSelector, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return select(self, timeout if timeout is None or self.get_map() else min(timeout, 0.02))

    selectors.DefaultSelector.select = brief  # type: ignore[method-assign]


def _run(file: Path) -> int:
    """Run one task under Airflow's supervisor; 0 if its end was reported, whatever it was."""
    import traceback

    from airflow.configuration import conf
    from airflow.executors import workloads
    from airflow.executors.base_executor import BaseExecutor

    try:
        text = file.read_text()
    except FileNotFoundError:
        return GONE
    if file.with_suffix(WITHDRAWN).exists():
        return NOT_WANTED
    workload = workloads.ExecuteTask.model_validate(json.loads(text)["workload"])
    if workload.log_path:
        # Where the log is read while the task runs.
        link = file.with_suffix(".log")
        link.unlink(missing_ok=True)
        link.symlink_to(Path(conf.get("logging", "base_log_folder"), workload.log_path).expanduser().absolute())
    try:
        BaseExecutor.run_workload(workload)
    except Exception as error:
        code = _code_of(error)
        if code != NOT_WANTED:
            traceback.print_exc()
            sys.stderr.flush()
        return code
    return 0


def _code_of(error: BaseException) -> int:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (404, 409, 410) or type(error).__name__ == "TaskAlreadyRunningError":
        return NOT_WANTED
    if status in (401, 403):
        return REFUSED
    # From Airflow 3.4 on it is httpx2.
    return UNREACHED if type(error).__module__.partition(".")[0] in ("httpx", "httpx2") else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
