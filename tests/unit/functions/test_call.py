"""A function goes as a script and comes back as a file; what cannot is said before it is sent, or in its output."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import lazy_object_proxy
import pendulum
import pytest
from airflow.sdk import DAG

from airflow_provider_soperator.decorators.sbatch import sbatch_task
from airflow_provider_soperator.functions import call, remote
from airflow_provider_soperator.functions.call import Launch
from airflow_provider_soperator.slurm import packs
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey

OFFSET = 100
ONLY_IN_A_CLASS = 7


def helper(value: int) -> int:
    return value + OFFSET


def add(first: int, *, second: int = 1) -> dict[str, int]:
    """Uses what its file defines beside it."""
    print("adding", first, second)
    return {"sum": helper(first + second)}


async def add_later(first: int) -> int:
    await asyncio.sleep(0)
    return helper(first)


def fail(first: int) -> None:
    raise LookupError(f"no {first} here")


def run(script: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """As slurmstepd runs it: in the job's folder, where this file's module cannot be imported from."""
    given = {"PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(["bash", "-c", script], cwd=cwd, env=given, capture_output=True, text=True, check=False)


def packed(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    launch = Launch(python=sys.executable, **options.pop("launch", {}))
    return call.script(function, args, options.pop("kwargs", {}), name="a-key", launch=launch, **options)


def test_a_call_there_and_back(tmp_path: Path) -> None:
    said = run(packed(add, 20, kwargs={"second": 3}), tmp_path)
    assert (said.returncode, said.stdout, said.stderr) == (0, "adding 20 3\n", "")
    data = Path(call.result_path(str(tmp_path), "a-key")).read_bytes()
    assert call.result(data) == {"sum": 123}


def test_a_coroutine_function_is_run_to_its_end(tmp_path: Path) -> None:
    assert run(packed(add_later, 20), tmp_path).stderr == ""
    assert call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes()) == 120


def test_what_stands_around_a_function_goes_with_it(tmp_path: Path) -> None:
    words = ["a", "b"]

    def inner(count: int) -> list[str]:
        return [word * count for word in words]

    run(packed(inner, 2), tmp_path)
    assert call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes()) == ["aa", "bb"]


@functools.lru_cache
def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def test_a_function_with_a_cache_goes_with_it(tmp_path: Path) -> None:
    def calls() -> tuple[int, int]:
        return fibonacci(30), fibonacci.cache_info().misses

    run(packed(calls), tmp_path)
    assert call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes()) == (832040, 31)


class Kept:
    def __init__(self) -> None:
        self.calls = 0

    @functools.cached_property
    def value(self) -> int:
        self.calls += 1
        return helper(self.calls)


def test_a_class_with_a_kept_property_goes_with_it(tmp_path: Path) -> None:
    def calls() -> tuple[int, int, int]:
        kept = Kept()
        return kept.value, kept.value, kept.calls

    run(packed(calls), tmp_path)
    assert call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes()) == (101, 101, 1)


def uses_a_class(first: int) -> int:
    return Kept().value + first


@pytest.mark.parametrize("function", [helper, uses_a_class])
def test_calls_of_a_mapped_task_have_all_but_their_arguments_in_common(
    function: Callable[[int], int], tmp_path: Path
) -> None:
    keys = [SubmissionKey(f"abcdefghijkl_{index}") for index in range(50)]
    scripts = [
        call.script(function, (index,), {}, name=key.text, launch=Launch(python=sys.executable))
        for index, key in enumerate(keys)
    ]
    jobs = [BatchJob(script=script, name=key.name("fit")) for script, key in zip(scripts, keys, strict=True)]
    [pack] = packs.packs(map(packs.packable_of, jobs))
    assert pack.job.script is not None
    # So that a thousand of them have less than packs.MOST_BYTES.
    assert len(pack.job.script) < len(scripts[0]) + len(keys) * 200
    said = run(pack.job.script, tmp_path, SLURM_ARRAY_TASK_ID="17")
    assert (said.returncode, said.stderr) == (0, "")
    data = Path(call.result_path(str(tmp_path), keys[17].text)).read_bytes()
    assert call.result(data) == function(17)


def test_what_the_body_of_a_class_reads_goes_with_it(tmp_path: Path) -> None:
    def calls() -> int:
        class Counted:
            offset = ONLY_IN_A_CLASS

        return Counted.offset

    run(packed(calls), tmp_path)
    assert call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes()) == 7


def without_packages(tmp_path: Path) -> Path:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    return bare


def test_the_modules_of_annotations_are_not_needed(tmp_path: Path) -> None:
    def called(first: int) -> int:
        return first

    called.__annotations__["first"] = pytest.Config
    for function in (called, functools.wraps(called)(lambda first: called(first))):
        launch = Launch(python=str(without_packages(tmp_path)))
        assert run(call.script(function, (5,), {}, name="a-key", launch=launch), tmp_path).stderr == ""


def test_functions_of_a_dag_file_go_with_one_of_another_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As Airflow names it.
    dag = ModuleType("unusual_prefix_1_dag")
    exec("def called(value):\n    return value + 1\n", vars(dag))
    monkeypatch.setitem(sys.modules, dag.__name__, dag)
    called = dag.called

    def wrapper(value: int) -> Any:
        return called(value)

    run(packed(wrapper, 1), tmp_path)
    assert call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes()) == 2


def test_a_traceback_shows_the_lines_of_the_functions_own_file(tmp_path: Path) -> None:
    said = run(packed(fail, 7), tmp_path)
    assert said.returncode == 1
    assert 'raise LookupError(f"no {first} here")' in said.stderr
    assert said.stderr.rstrip().endswith("LookupError: no 7 here")
    assert "__main__.py" not in said.stderr
    assert not Path(call.result_path(str(tmp_path), "a-key")).exists()


def test_a_file_is_read_in_its_own_encoding(tmp_path: Path) -> None:
    file = tmp_path / "latin.py"
    file.write_text("# -*- coding: latin-1 -*-\ndef called(): raise LookupError('é')\n", encoding="latin-1")
    spec = importlib.util.spec_from_file_location("latin", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "raise LookupError('é')" in run(packed(module.called), tmp_path).stderr


def test_the_result_of_an_earlier_run_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    run(packed(add, 1), tmp_path)
    run(packed(fail, 1), tmp_path)
    assert not Path(call.result_path(str(tmp_path), "a-key")).exists()


def test_of_several_ranks_the_first_ones_result_comes_back(tmp_path: Path) -> None:
    assert run(packed(add, 1), tmp_path, SLURM_PROCID="1").returncode == 0
    assert not Path(call.result_path(str(tmp_path), "a-key")).exists()


@pytest.mark.parametrize("container", [{}, {"container_image": "ubuntu"}])
def test_in_a_virtual_environment_its_programs_are_found(container: dict[str, str], tmp_path: Path) -> None:
    venv = tmp_path / "a venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (venv / "bin" / "tool").write_text("#!/bin/sh\necho the tool\n")
    (venv / "bin" / "tool").chmod(0o755)

    def calls() -> tuple[str, str]:
        return sys.prefix, subprocess.run(["tool"], capture_output=True, text=True, check=True).stdout

    # As pyxis has it, the image's variables win over those of the job.
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nPATH=/usr/bin:/bin exec "$@"\n')
    srun.chmod(0o755)
    launch = Launch(venv=str(venv), container=container)
    script = call.script(calls, (), {}, name="a-key", launch=launch)
    assert run(script, tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin").stderr == ""
    assert call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes()) == (str(venv), "the tool\n")


def exec_line(launch: Launch) -> list[str]:
    """The words with which the shell calls srun, as it understands them."""
    *_, line = launch.lines("CALL").splitlines()
    program = f'folder="/a b/c"; exec() {{ printf "%s\\n" "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.splitlines()


def test_ranks_are_started_by_srun() -> None:
    words = exec_line(Launch(ranks=4, srun_args=["--mpi=pmix", "--output=a b"]))
    assert words == [
        *("srun", "--ntasks=4", "--kill-on-bad-exit=1", "--mpi=pmix", "--output=a b"),
        *("python3", "-u", "CALL"),
    ]
    assert exec_line(Launch(srun_args=["--mpi=pmix"]))[1:3] == ["--nodes=1", "--ntasks=1"]
    assert exec_line(Launch(srun_args="--mpi=pmix"))[4] == "--mpi=pmix"
    # As a template that renders natively makes it.
    assert exec_line(Launch(srun_args=["--nodes", 2]))[4:6] == ["--nodes", "2"]  # type: ignore[list-item]


def test_a_container_has_the_folder_of_the_call_beside_the_users_mounts() -> None:
    image = {"container_image": "nvcr.io#nvidia/pytorch:25.09-py3", "container_writable": True}
    for mounts, said in (
        (None, ""),
        ("/data:/data", "/data:/data,"),
        (["/data:/data:ro", "/my code:/code"], "/data:/data:ro,/my code:/code,"),
    ):
        words = exec_line(Launch(python="/usr/bin/python3.12", container={**image, "container_mounts": mounts}))
        assert words[:4] == ["srun", "--nodes=1", "--ntasks=1", "--kill-on-bad-exit=1"]
        assert words[4:6] == ["--container-image=nvcr.io#nvidia/pytorch:25.09-py3", "--container-writable"]
        # Where the call's files are has the same path inside.
        assert words[6:] == [f"--container-mounts={said}/a b/c:/a b/c", "env", "/usr/bin/python3.12", "-u", "CALL"]


def test_a_signal_for_the_batch_script_reaches_the_function(tmp_path: Path) -> None:
    def waits() -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        print("ready")
        return int(signal.sigwait({signal.SIGUSR1}))

    shell = subprocess.Popen(["bash", "-c", packed(waits)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    with shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "ready\n"
        shell.send_signal(signal.SIGUSR1)
    assert call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes()) == signal.SIGUSR1


def test_what_old_calls_have_left_is_removed(tmp_path: Path) -> None:
    run(packed(add, 1), tmp_path)
    folder = tmp_path / call.FOLDER
    (folder / "old.zip").touch()
    (folder / "young.zip").touch()
    os.utime(folder / "old.zip", (0, 0))
    assert run(packed(add, 1), tmp_path).returncode == 0
    assert sorted(file.name for file in folder.iterdir()) == ["a-key.result", "a-key.zip", "young.zip"]
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def other_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow runs on another Python than the cluster."""
    about = call._about
    monkeypatch.setattr(call, "_about", lambda function: about(function) | {"python": "3.99"})


@pytest.mark.usefixtures("other_python")
def test_another_python_gets_the_source(tmp_path: Path) -> None:
    said = run(packed(add, 20, kwargs={"second": 3}), tmp_path)
    assert (said.returncode, said.stdout, said.stderr) == (0, "adding 20 3\n", "")
    assert call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes()) == {"sum": 123}
    # Its traceback has the lines of the DAG file, too.
    said = run(packed(fail, 7), tmp_path)
    line = inspect.getsourcelines(fail)[1] + 1
    assert said.returncode == 1
    assert f'File "{__file__}", line {line}, in fail\n    raise LookupError(f"no {{first}} here")' in said.stderr


@pytest.mark.usefixtures("other_python")
def test_what_has_no_source_says_what_to_do_on_another_python(tmp_path: Path) -> None:
    said = run(packed(lambda: 1), tmp_path)
    assert said.returncode == remote.UNFIT
    assert "and Airflow runs on 3.99: the function would have to be sent as source, which cannot contain" in said.stderr
    assert "write it with def; or set an interpreter of Python 3.99 (python=, venv=)" in said.stderr


def test_a_version_in_the_interpreters_name_is_heeded_before_anything_is_sent() -> None:
    with pytest.raises(call.CallError, match=r"python= is Python 3\.99, .* cannot contain a lambda"):
        call.script(lambda: 1, (), {}, name="a-key", launch=Launch(python="/usr/bin/python3.99"))
    assert call.script(add, (1,), {}, name="a-key", launch=Launch(python="/usr/bin/python3.99"))


DAG_FILE = """
from __future__ import annotations
import dataclasses
import enum
import pickle
import typing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import environ
from random import random
from sys import stderr

import cloudpickle
import dill

class Rates(typing.NamedTuple):
    first: float

class Size(enum.Enum):
    SMALL = 1

@dataclasses.dataclass
class Settings:
    size: Size

def double(value):
    return 2 * value

def inside():
    @dataclasses.dataclass
    class Settings:
        rates: list[float]
    return Settings([0.1]).rates

def pool():
    with ProcessPoolExecutor(1, get_context("fork")) as processes:
        return list(processes.map(double, [1, 2]))

def copied():
    return pickle.loads(pickle.dumps(Settings(Size.SMALL)))

def values():
    return Settings(Size.SMALL), Rates(0.1)

def of_the_process():
    import sys
    return dict(environ), random(), stderr is sys.stderr

def sent_on():
    return cloudpickle.dumps(double), cloudpickle.dumps(Settings), dill.dumps(double, recurse=True)
"""


@pytest.fixture
def dag_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A DAG file, as Airflow reads it."""
    file = tmp_path / "dag.py"
    file.write_text(DAG_FILE)
    spec = importlib.util.spec_from_file_location("unusual_prefix_1_dag", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    return module


def returned(function: Callable[..., Any], tmp_path: Path) -> Any:
    assert run(packed(function), tmp_path).stderr == ""
    return call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes())


@pytest.mark.parametrize(("name", "value"), [("inside", [0.1]), ("pool", [2, 4])])
def test_the_module_of_a_dag_file_is_found(
    dag_file: Any, tmp_path: Path, name: str, value: Any, request: pytest.FixtureRequest
) -> None:
    """Dataclasses look for it, and pools of processes in it."""
    function = getattr(dag_file, name)
    assert returned(function, tmp_path) == value
    assert returned(functools.wraps(function)(lambda: function()), tmp_path) == value
    request.getfixturevalue("other_python")
    assert returned(function, tmp_path) == value


def test_objects_of_a_dag_files_classes_can_be_pickled_and_come_back(dag_file: Any, tmp_path: Path) -> None:
    assert returned(dag_file.copied, tmp_path).size.name == "SMALL"
    settings, rates = returned(dag_file.values, tmp_path)
    assert (settings.size.value, rates.first) == (1, 0.1)


@pytest.mark.parametrize("python", ["monkeypatch", "other_python"])
def test_the_environment_and_the_random_numbers_are_those_of_the_job(
    dag_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, request: pytest.FixtureRequest
) -> None:
    """Also where the DAG file has imported them by their names."""
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "of the Airflow worker")
    request.getfixturevalue(python)
    (there, one, is_own), (_, two, _) = (returned(dag_file.of_the_process, tmp_path) for _ in range(2))
    assert "AIRFLOW__CORE__FERNET_KEY" not in there
    assert one != two
    assert is_own


def test_what_cannot_import_a_dag_file_gets_its_functions_and_classes_by_value(
    dag_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the processes of joblib, which have only what cloudpickle sends them."""
    sent = returned(dag_file.sent_on, tmp_path)
    monkeypatch.delitem(sys.modules, dag_file.__name__)
    assert [pickle.loads(data).__name__ for data in sent] == ["double", "Settings", "double"]


def test_a_module_that_the_cluster_can_import_stays_as_it_is(dag_file: Any, tmp_path: Path) -> None:
    (tmp_path / f"{dag_file.__name__}.py").write_text("there = 5\n")
    exec(f"def called():\n    import {dag_file.__name__} as found\n    return found.there\n", vars(dag_file))
    assert run(packed(dag_file.called), tmp_path, PYTHONPATH=str(tmp_path)).stderr == ""
    assert call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes()) == 5


def test_requirements_are_installed_for_the_function(tmp_path: Path) -> None:
    # As much of uv as is used; it installs modules of these names.
    uv = tmp_path / "uv"
    uv.write_text(f"""#!/bin/bash
case $1 in
venv) exec {sys.executable} -m venv --without-pip "$4" ;;
pip) cd "${{4%/bin/python}}"/lib/python*/site-packages && sed 's/$/.py/' "$6" | xargs touch ;;
esac
""")
    uv.chmod(0o755)

    def uses() -> tuple[str, str, str]:
        import just_installed  # type: ignore[import-not-found]

        return just_installed.__file__, sys.prefix, os.environ["VIRTUAL_ENV"]

    script = packed(uses, launch={"requirements": "just_installed\n"})
    said = run(script, tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert said.returncode == 0, said.stderr
    module, prefix, venv = call.result(Path(call.result_path(str(tmp_path), "a-key")).read_bytes())
    assert module.startswith(prefix)
    assert prefix == venv
    assert Path(venv).parent == tmp_path / call.FOLDER / "venvs"
    assert said.stderr == f"airflow: installing the requirements into {venv}\n"


def test_a_path_comes_back_from_any_python() -> None:
    # Python 3.13 names another module than all others.
    data = b"\x80\x05cpathlib._local\nPurePosixPath\n(\x8c\x01/\x8c\x01at\x81."
    assert call.result(data) == PurePosixPath("/a")


def test_a_result_that_is_too_large_says_what_to_do(tmp_path: Path) -> None:
    said = run(packed(lambda: "x" * 1000, most=500), tmp_path)
    assert said.returncode == remote.UNFIT
    assert " bytes, more than 500: write a file, and return its path" in said.stderr


def test_a_result_that_cannot_be_sent_back_says_so(tmp_path: Path) -> None:
    said = run(packed(lambda: (line for line in "ab")), tmp_path)
    assert said.returncode == remote.UNFIT
    assert "the result of the function cannot be pickled" in said.stderr


def test_what_is_not_installed_there_is_named(tmp_path: Path) -> None:
    launch = Launch(python=str(without_packages(tmp_path)))
    said = run(call.script(lambda: pytest.__version__, (), {}, name="a-key", launch=launch), tmp_path)
    assert said.returncode == remote.UNFIT
    assert "needs a module that is not installed for" in said.stderr
    assert "No module named 'pytest'" in said.stderr


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(call.CallError, match=r"add or its arguments cannot be pickled .*lock"):
        packed(add, threading.Lock())


def test_arguments_that_are_too_large_are_refused() -> None:
    import random

    with pytest.raises(call.CallError, match=r"KiB with its arguments.*pass their path"):
        packed(add, random.Random(0).randbytes(4 << 20))


def test_of_two_interpreters_one_is_too_many() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        sbatch_task(python="/usr/bin/python3", venv="/opt/venv")(add)(1)
    with pytest.raises(ValueError, match="and no venv"):
        sbatch_task(requirements=["numpy"], venv="/opt/venv")(add)(1)


def environment(**options: Any) -> Any:
    return Launch(**options).environment()


def test_the_same_requirements_have_the_same_environment() -> None:
    first = environment(requirements="numpy\n")
    assert environment(requirements="numpy\n") == first
    others = [
        environment(requirements="scipy\n"),
        environment(requirements="numpy\n", python="/opt/python3"),
        environment(requirements="numpy\n", container={"container_image": "ubuntu"}),
    ]
    assert len({one["key"] for one in (first, *others)}) == 4
    assert environment() is None
    with pytest.raises(call.CallError, match="must be an absolute path"):
        environment(requirements="numpy\n", venv_cache_path="venvs")


def test_a_container_has_the_folder_of_environments() -> None:
    container = {"container_image": "ubuntu"}
    words = exec_line(Launch(container=container, requirements="numpy\n", venv_cache_path="/a/venvs"))
    assert "--container-mounts=/a/venvs:/a/venvs,/a b/c:/a b/c" in words
    assert "--container-mounts=/a b/c:/a b/c" in exec_line(Launch(container=container, venv_cache_path="/a/venvs"))


def sent(requirements: Any) -> Any:
    """What a task of these requirements sends of them."""
    with DAG("a_dag", schedule=None):
        operator = sbatch_task(requirements=requirements)(add)(1).operator
    return operator._requirements()


def test_requirements_are_a_list_or_a_file(tmp_path: Path) -> None:
    # In any order they are the same environment.
    assert sent(["scipy", "numpy==2.*", "scipy"]) == "numpy==2.*\nscipy\n"
    assert sent([]) == ""
    file = tmp_path / "requirements.txt"
    file.write_text("scipy\nnumpy\n")
    assert sent(str(file)) == sent(file) == "scipy\nnumpy\n"
    with pytest.raises(call.CallError, match="'numpy' must be a list, or a file beside the DAG"):
        sent("numpy")


@pytest.mark.parametrize("nothing", [None, "", []])
def test_no_requirements_may_be_said_in_any_way(nothing: Any) -> None:
    with DAG("a_dag", schedule=None, default_args={"requirements": ["torch"]}) as dag:
        sbatch_task(requirements=nothing, venv="/opt/venv")(add)(1)
    dag.resolve_template_files()


@pytest.mark.parametrize("nothing", ["", "None", None])
def test_an_empty_field_of_a_form_leaves_its_option_out(nothing: str | None) -> None:
    with DAG("a_dag", schedule=None):
        task = sbatch_task(add)(1).operator
    for name in ("python", "venv", "requirements", "venv_cache_path", "ranks", "srun_args"):
        # As its template is rendered.
        setattr(task, name, nothing)
    task._pack({}, SubmissionKey("a" * 12))
    assert task.script.splitlines()[-1].startswith("exec python3 -u ")
    assert task.job["ntasks"] is None


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({}, 1),
        ({"ranks": 8}, None),
        ({"ranks": "1"}, 1),
        ({"nodes": 2}, 2),
        ({"nodes": ""}, 1),
        ({"sbatch_args": ["--nodes=2"]}, None),
        ({"gpus": None, "sbatch_args": ["", "--gpus=8"]}, 1),
    ],
)
def test_the_gpus_of_one_process_are_on_its_node(options: dict[str, Any], nodes: Any) -> None:
    with DAG("a_dag", schedule=None):
        task = sbatch_task(**{"gpus": 8} | options)(add)(1).operator
    task._pack({}, SubmissionKey("a" * 12))
    assert task.job.get("nodes") == nodes


def test_a_path_is_as_good_as_its_text() -> None:
    with DAG("a_dag", schedule=None):
        python = sbatch_task(python=Path("/opt/bin/python3"), requirements=["a"], venv_cache_path=Path("/opt/venvs"))
        tasks = [python(add)(1).operator, sbatch_task(venv=Path("/opt/venv"))(add)(1).operator]
    for task, interpreter in zip(tasks, ("/opt/bin/python3", "/opt/venv/bin/python"), strict=True):
        task._pack({}, SubmissionKey("a" * 12))
        assert task.script.splitlines()[-1].startswith(f"exec {interpreter} -u ")


def test_a_path_that_a_template_makes_is_whole_too() -> None:
    with DAG("a_dag", schedule=None):
        task = sbatch_task(venv="{{ params.venv }}")(add)(1).operator
    task.venv = "~/envs/torch"
    with pytest.raises(call.CallError, match="venv: '~/envs/torch' is for a shell to understand: write the whole path"):
        task._pack({}, SubmissionKey("a" * 12))


def test_the_times_of_the_last_success_are_given_as_values() -> None:
    def called(prev_start_date_success: Any = None, prev_end_date_success: Any = None) -> None: ...

    with DAG("d", schedule=None):
        task = sbatch_task(called)().operator
    times = {"prev_start_date_success": pendulum.datetime(2026, 11, 21), "prev_end_date_success": None}
    context = {name: lazy_object_proxy.Proxy(lambda value=value: value) for name, value in times.items()}
    given = call.plain(task._from_context(context))
    assert [type(given[name]) for name in times] == [datetime, type(None)]


def test_a_function_of_any_number_of_arguments_has_variables_as_well() -> None:
    def called(first: int, *others: int, ds: str, run_id: str | None = None) -> None: ...

    with DAG("d", schedule=None):
        task = sbatch_task(called)(1, 2, 3, run_id="mine").operator
    assert task._from_context({"ds": "2026-11-21", "run_id": "a", "first": 4, "others": 5}) == {"ds": "2026-11-21"}


def test_variables_that_a_run_has_not_are_noticed_before_there_is_a_job() -> None:
    def called(first: int, ds: str, *, try_number: int) -> None: ...

    with DAG("d", schedule=None):
        task = sbatch_task(called)(1).operator
    for context, missing in (({"run_id": "a"}, "'ds'"), ({"ds": "2026-11-21"}, "'try_number'")):
        with pytest.raises(call.CallError, match=rf"is missing a required .*{missing}, .* the default None"):
            task._pack(context, SubmissionKey("a" * 12))
    task._pack({"ds": "2026-11-21", "try_number": 1}, SubmissionKey("a" * 12))


@pytest.mark.parametrize(("name", "value"), [("var", {"value": 1}), ("inlets", []), ("outlets", []), ("task", 1)])
def test_variables_with_airflows_objects_cannot_go(name: str, value: Any) -> None:
    with DAG("d", schedule=None):
        task = sbatch_task(eval(f"lambda {name}=None: 1"), task_id="a")().operator
    with pytest.raises(call.CallError, match=f"Airflow's {name} cannot go to the cluster"):
        task._pack({name: value}, SubmissionKey("a" * 12))
