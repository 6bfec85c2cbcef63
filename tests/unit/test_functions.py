"""A function goes as a script and comes back as a file; what cannot is said before it is sent, or in its output."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.functions import packing

OFFSET = 100


def helper(value: int) -> int:
    return value + OFFSET


def add(first: int, *, second: int = 1) -> dict[str, int]:
    """Uses what its file defines beside it."""
    print("adding", first, second)
    return {"sum": helper(first + second)}


def fail(first: int) -> None:
    raise LookupError(f"no {first} here")


def run(script: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """As slurmstepd runs it: in the job's folder, where this file's module cannot be imported from."""
    given = {"PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(["bash", "-c", script], cwd=cwd, env=given, capture_output=True, text=True, check=False)


def packed(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    return packing.script(function, args, options.pop("kwargs", {}), name="a-key", python=sys.executable, **options)


def test_a_call_there_and_back(tmp_path: Path) -> None:
    said = run(packed(add, 20, kwargs={"second": 3}), tmp_path)
    assert (said.returncode, said.stdout, said.stderr) == (0, "adding 20 3\n", "")
    data = Path(packing.result_path(str(tmp_path), "a-key")).read_bytes()
    assert packing.result(data) == {"sum": 123}


def test_what_stands_around_a_function_goes_with_it(tmp_path: Path) -> None:
    words = ["a", "b"]

    def inner(count: int) -> list[str]:
        return [word * count for word in words]

    run(packed(inner, 2), tmp_path)
    assert packing.result(Path(packing.result_path(str(tmp_path), "a-key")).read_bytes()) == ["aa", "bb"]


def test_a_traceback_shows_the_lines_of_the_functions_own_file(tmp_path: Path) -> None:
    said = run(packed(fail, 7), tmp_path)
    assert said.returncode == 1
    assert 'raise LookupError(f"no {first} here")' in said.stderr
    assert said.stderr.rstrip().endswith("LookupError: no 7 here")
    assert "__main__.py" not in said.stderr
    assert not Path(packing.result_path(str(tmp_path), "a-key")).exists()


def test_the_result_of_an_earlier_run_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    run(packed(add, 1), tmp_path)
    run(packed(fail, 1), tmp_path)
    assert not Path(packing.result_path(str(tmp_path), "a-key")).exists()


def test_of_several_ranks_the_first_ones_result_comes_back(tmp_path: Path) -> None:
    assert run(packed(add, 1), tmp_path, SLURM_PROCID="1").returncode == 0
    assert not Path(packing.result_path(str(tmp_path), "a-key")).exists()


def test_a_launcher_comes_before_the_interpreter(tmp_path: Path) -> None:
    said = run(packed(add, 1, launcher=["env", "A=it's", "SLURM_PROCID=3"]), tmp_path)
    assert (said.returncode, said.stdout) == (0, "adding 1 1\n")


def test_another_python_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = packing._about
    monkeypatch.setattr(packing, "_about", lambda function: about(function) | {"python": "3.99"})
    said = run(packed(add, 1), tmp_path)
    assert said.returncode == 1
    assert "but the function comes from Python 3.99: name an interpreter of that version" in said.stderr


def test_a_result_that_is_too_large_says_what_to_do(tmp_path: Path) -> None:
    said = run(packed(lambda: "x" * 1000, most=500), tmp_path)
    assert said.returncode == 1
    assert " bytes, more than 500: write a file, and return its path" in said.stderr


def test_a_result_that_cannot_be_sent_back_says_so(tmp_path: Path) -> None:
    said = run(packed(lambda: (line for line in "ab")), tmp_path)
    assert "what the function returned cannot be sent back" in said.stderr


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(packing.CannotSend, match=r"add or its arguments cannot be sent .*lock"):
        packed(add, threading.Lock())


def test_arguments_that_are_too_large_are_refused() -> None:
    import random

    with pytest.raises(packing.CannotSend, match=r"KiB with its arguments.*pass their path"):
        packed(add, random.Random(0).randbytes(4 << 20))
