"""Functions that run as jobs: what goes there, what comes back, and what a task says whose function cannot run."""

from __future__ import annotations

import json
import os
import signal
import zipfile
from pathlib import Path

import pytest

from sandbox.airflow import interpreter
from tests.airflow.jobs import Jobs
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

TASKS = '''
OFFSET = 100
GREETING = "/opt/greeting-1.0-py3-none-any.whl"

def helper(value):
    return value + OFFSET

@task
def numbers():
    return [1, 2, 3]

@task
def after(value):
    return value + 1

@task.sbatch
def add(first: int, *, second: str = "") -> dict[str, int]:
    """Uses what its file defines beside it."""
    print("adding", first, second)
    return {"sum": helper(first + int(second)), "first": first}

after(add(5, second="{{ 1 + 1 }}")["sum"])

@task.sbatch(deferrable=True)
def times(value, by):
    return value * by

@task.sbatch
def sum_up(values):
    return sum(values)

sum_up(times.partial(by=2).expand(value=numbers()))

@task.sbatch(ranks=2)
def ranked():
    import os
    rank = int(os.environ["SLURM_PROCID"])
    print("this is rank", rank, "of", os.environ["SLURM_NTASKS"])
    return rank

@task.sbatch(ranks=2)
def one_rank_fails():
    import os
    import time
    if os.environ["SLURM_PROCID"] == "1":
        raise RuntimeError("rank 1 gives up")
    time.sleep(3000)

@task.sbatch(python=None, venv="/opt/venv")
def in_venv(run_id, ds_nodash=None):
    import sys
    return [sys.prefix, run_id]

@task.sbatch(python="/usr/bin/python3")
def clusters_python():
    import sys
    return [sys.executable, helper(1)]

@task.sbatch(python="/usr/bin/python3", requirements=[GREETING], venv_cache_path="/opt/venvs")
def required():
    import sys
    import greeting
    return [greeting.WORDS, sys.prefix]

@task.sbatch
def path(name):
    return name

path("/root/script.sh")
path.override(task_id="over_kubernetes", slurm_conn_id="soperator_kubernetes")("a")
# slurmrestd knows no home to start in.
path.override(task_id="over_rest", slurm_conn_id="soperator_rest", chdir="/root")("b")

@task.sbatch(on_finish={3: "succeed"})
def may_fail():
    raise SystemExit(3)

@task.sbatch(on_finish={75: "skip"})
def skips():
    raise SystemExit(75)

@task.sbatch
def raises(first):
    raise LookupError(f"no {first} here")

raises(7)

@task.sbatch
def ends_its_process():
    raise SystemExit(0)

# Another try of these could not help.

@task.sbatch(retries=2)
def too_large():
    return bytes(17 << 20)

@task.sbatch(retries=2)
def of_no_type_here():
    import sys
    from types import ModuleType
    module = sys.modules["only_there"] = ModuleType("only_there")
    exec("class Thing: pass", vars(module))
    return module.Thing()

@task.sbatch(retries=2)
def wants_airflow(ti):
    return ti.task_id

@task.sbatch(retries=2, array="{{ '0-1' }}")
def arrayed():
    return 1

@task.sbatch(retries=2, slurm_conn_id="no_files")
def without_files():
    return 1

for function in (ranked, one_rank_fails, may_fail, skips, ends_its_process, too_large, of_no_type_here,
                 clusters_python, arrayed, without_files):
    function()
in_venv()
for index in range(2):
    required()
wants_airflow()
'''
#: By the task: what its log says.
FOR_GOOD = {
    "too_large": "write a file, and return its path",
    "of_no_type_here": "the result of the function cannot be unpickled here (ModuleNotFoundError: No module named",
    "wants_airflow": "Airflow's ti cannot go to the cluster: give the function what it needs of it as an argument",
    "arrayed": "map the task instead (expand)",
    "without_files": "name an SSH or Kubernetes connection in it (files_via)",
}


#: What all functions here have in common.
OPTIONS = f"default_args={{'poll_interval': 1, 'python': {interpreter.PYTHON!r}, 'time_limit': 60}}"


def start(stack: Stack, slurm: Cluster) -> Run:
    python = interpreter.install(slurm.sandbox.init.root())
    slurm.run(python, "-m", "venv", "--without-pip", "/opt/venv")
    wheel(slurm.sandbox.init.root() / "opt/greeting-1.0-py3-none-any.whl")
    rest = {"rest_url": "http://127.0.0.1:6820", "jwt_token": "of-a-test"}
    said = {"connection_id": "no_files", "conn_type": "soperator", "extra": json.dumps(rest)}
    stack.call("POST", "/connections", json=said)
    return stack.add_dag("functions", TASKS, dag_options=OPTIONS).trigger()


def wheel(file: Path) -> None:
    """A package that can be installed without a network."""
    info = "greeting-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("greeting.py", "WORDS = 'hello there'")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def test_arguments_go_and_a_result_comes_back(run: Run) -> None:
    run.wait("after", "success")
    assert run.xcom("add") == {"sum": 107, "first": 5}
    assert run.xcom("after") == 108
    assert "adding 5 2" in run.wait_log("add", "is COMPLETED").splitlines()
    report = run.xcom("add", key="job")
    assert (report["state"], report["workdir"]) == ("COMPLETED", "/root")


def test_a_mapped_function_has_a_job_for_each_value(run: Run) -> None:
    run.wait("sum_up", "success")
    assert [run.xcom("times", index) for index in range(3)] == [2, 4, 6]
    assert run.xcom("sum_up") == 12
    assert len({run.xcom("times", index, key="job")["job_id"] for index in range(3)}) == 3


def test_of_several_ranks_the_first_ones_result_counts(run: Run) -> None:
    run.wait("ranked", "success")
    assert run.xcom("ranked") == 0
    log = run.wait_log("ranked", "is COMPLETED").splitlines()
    assert {"this is rank 0 of 2", "this is rank 1 of 2"} <= set(log)


def test_a_rank_that_fails_ends_the_others(run: Run) -> None:
    run.wait("one_rank_fails", "failed")
    assert "RuntimeError: rank 1 gives up" in run.wait_log("one_rank_fails", "is FAILED")


def test_a_virtual_environment_and_a_variable_of_airflows(run: Run) -> None:
    run.wait("in_venv", "success")
    assert run.xcom("in_venv") == ["/opt/venv", run.run_id]


def test_the_clusters_own_python_runs_a_function(run: Run) -> None:
    run.wait("clusters_python", "success")
    assert run.xcom("clusters_python") == ["/usr/bin/python3", 101]


def test_requirements_are_installed_once(run: Run) -> None:
    found = []
    logs = []
    for task_id in ("required", "required__1"):
        run.wait(task_id, "success")
        found.append(run.xcom(task_id))
        logs.append(run.wait_log(task_id, "is COMPLETED"))
    assert found[0] == found[1]
    words, prefix = found[0]
    assert words == "hello there"
    assert prefix.startswith("/opt/venvs/")
    assert ["Successfully installed greeting-1.0" in log for log in logs].count(True) == 1


def test_a_result_comes_back_over_every_way_to_files(run: Run) -> None:
    for task_id, result in (("over_kubernetes", "a"), ("over_rest", "b")):
        run.wait(task_id, "success")
        assert run.xcom(task_id) == result


def test_an_argument_is_no_template_file(run: Run) -> None:
    run.wait("path", "success")
    assert run.xcom("path") == "/root/script.sh"


def test_a_traceback_shows_the_functions_own_lines(run: Run) -> None:
    run.wait("raises", "failed")
    log = run.wait_log("raises", "with exit code 1")
    assert 'raise LookupError(f"no {first} here")' in log
    assert "LookupError: no 7 here" in log.splitlines()
    assert f'File "{run.stack.dags}/functions.py", line ' in log


def test_an_exit_code_means_what_the_task_says(run: Run) -> None:
    run.wait("skips", "skipped")
    run.wait("may_fail", "success")
    assert run.xcom("may_fail", key="job")["exit_code"] == "3:0"
    run.wait("ends_its_process", "failed")
    assert "has succeeded, but left no result" in run.wait_log("ends_its_process", "the function must return")


@pytest.mark.parametrize("task_id", FOR_GOOD)
def test_what_cannot_be_helped_is_said_and_not_tried_again(run: Run, task_id: str) -> None:
    run.wait_failed_for_good(task_id)
    run.wait_log(task_id, FOR_GOOD[task_id])


def test_a_cleared_function_is_called_anew_and_nothing_is_left_of_it(run: Run, slurm: Cluster) -> None:
    run.wait("add", "success")
    first = run.xcom("add", key="job")
    run.clear("add")
    run.wait("add", "success", least_try=2)
    second = run.xcom("add", key="job")
    assert second["job_id"] != first["job_id"]
    assert run.xcom("add") == {"sum": 107, "first": 5}
    keys = [report["name"].rpartition(".af-")[2] for report in (first, second)]

    def left() -> list[str]:
        names = slurm.run("ls", "/root/.airflow-soperator").split()
        return [name for name in names if name.startswith(tuple(keys))]

    # The task has succeeded before that.
    slurm.wait("the files of the calls are gone", lambda: not left())


HELD = """
def die_in_second_try(context, result):
    import os
    import signal
    if context["ti"].try_number == 2:
        os.kill(os.getpid(), signal.SIGKILL)

@task.sbatch(retries=2, retry_delay=timedelta(seconds=1), post_execute=die_in_second_try)
def held():
    import os
    import time
    job = os.environ["SLURM_JOB_ID"]
    print("begun")
    while not os.path.exists(f"/root/go-{job}"):
        time.sleep(0.1)
    return job

held()
"""


# It takes the interpreter that comes with the run.
@pytest.mark.usefixtures("run")
def test_a_try_that_dies_before_the_end_leaves_job_and_result_to_the_next(stack: Stack, slurm: Cluster) -> None:
    run = stack.add_dag("adopted", HELD, dag_options=OPTIONS).trigger()
    run.wait_log("held", "begun")
    jobs = Jobs(slurm, run, "held")
    [job] = jobs.wait("RUNNING")
    # The first one while the function runs, and the second when it has read the result.
    os.kill(run.task("held")["pid"], signal.SIGKILL)
    slurm.let_go(job)
    run.wait("held", "success", least_try=3)
    assert run.xcom("held") == job
    assert jobs.wait("COMPLETED") == [job]
