"""The finder of flaky tests: what it chooses, in which order it is run, what it tells, and that nothing of it stays."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.flaky.imports import changed, touched
from tests.flaky.load import load
from tests.flaky.runs import Run, table
from tests.patience import PATIENCE

FINDER = [sys.executable, "-m", "tests.flaky"]


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


# What a change touches

PRODUCT = "airflow_provider_soperator"
FILES = {
    f"{PRODUCT}/__init__.py": "",
    f"{PRODUCT}/low.py": "",
    f"{PRODUCT}/other.py": "",
    f"{PRODUCT}/high.py": f"def late():\n    from {PRODUCT} import low\n",
    "tests/conftest.py": 'pytest_plugins = ["tests.fixtures"]',
    "tests/fixtures.py": f"import {PRODUCT}.other",
    "tests/unit/test_low.py": f"from {PRODUCT}.low import some",
    "tests/unit/test_high.py": f"from {PRODUCT}.high import *",
    "tests/airflow/test_dag.py": f'DAG = f"""\nfrom {PRODUCT}.high import Operator\n"""',
}


@pytest.mark.parametrize(
    ("file", "found"),
    [
        (f"{PRODUCT}/low.py", {"unit/test_low": 1, "airflow/test_dag": 2, "unit/test_high": 2}),
        (f"{PRODUCT}/other.py", {"airflow/test_dag": 3, "unit/test_high": 3, "unit/test_low": 3}),
        ("tests/fixtures.py", {"airflow/test_dag": 2, "unit/test_high": 2, "unit/test_low": 2}),
        # Of a package all modules are imported through it.
        (f"{PRODUCT}/__init__.py", {}),
        ("tests/unit/test_low.py", {"unit/test_low": 0}),
        ("README.md", {}),
    ],
)
def test_tests_are_found_by_what_they_import(tmp_path: Path, file: str, found: dict[str, int]) -> None:
    write(tmp_path, FILES)
    assert list(touched(tmp_path, [file]).items()) == [(f"tests/{name}.py", away) for name, away in found.items()]


def test_who_imports_what_is_gone_is_found(tmp_path: Path) -> None:
    write(tmp_path, {name: text for name, text in FILES.items() if not name.endswith("low.py") or "test" in name})
    assert touched(tmp_path, [f"{PRODUCT}/low.py"])["tests/unit/test_low.py"] == 1


def test_a_change_is_what_was_committed_and_what_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def git(*words: str) -> None:
        identity = ("-c", "user.name=tests", "-c", "user.email=tests@example.com")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("old", "committed"):
        write(tmp_path, {f"{name}.py": "", "edited.py": name})
        git("add", ".")
        git("commit", "--message", name)
    write(tmp_path, {"edited.py": "again", "new.py": ""})
    (tmp_path / "old.py").unlink()
    assert changed(tmp_path, None)[1] == ["committed.py", "edited.py", "new.py", "old.py"]
    assert changed(tmp_path, "HEAD")[1] == ["edited.py", "new.py", "old.py"]
    with pytest.raises(ValueError, match="no-such"):
        changed(tmp_path, "no-such")


# In which order

STORY = "import pytest\npytestmark = pytest.mark.in_order\n"
BOTH = (
    "import pytest\n"
    "@pytest.fixture(params=['old', 'new'], scope='session')\ndef sandbox(request): pass\n"
    "pytestmark = pytest.mark.xdist_group('late')\n"
)
TESTS = "".join(f"def test_{number}(): pass\n" for number in range(5))


def collected(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    result = pytester.runpytest_inprocess("-p", "tests.order", "--strict-markers", "--collect-only", "-q", *arguments)
    return [line for line in result.outlines if "::" in line]


def test_a_shuffle_keeps_together_what_belongs_together(pytester: pytest.Pytester) -> None:
    of_sandboxes = BOTH + TESTS.replace("()", "(sandbox)")
    pytester.makepyfile(test_a=TESTS, test_b=STORY + TESTS, test_c=TESTS, test_x=of_sandboxes, test_y=of_sandboxes)
    usual, orders = collected(pytester), [collected(pytester, "--shuffle", str(seed)) for seed in range(4)]
    assert len(set(map(tuple, [usual, *orders]))) == 5
    for order in orders:
        assert sorted(order) == sorted(usual)
        assert [test for test in order if "test_b" in test] == [f"test_b.py::test_{number}" for number in range(5)]
        blocks = [re.sub(r"::test_\d", "", test) for test in order]
        # A group stays where it was; each module is one block, and for each sandbox one of its own.
        assert all(block[:7] in ("test_a.", "test_b.", "test_c.") for block in blocks[:15])
        assert [blocks[at] != blocks[at - 1] for at in range(1, len(blocks))].count(True) == 6
        assert [test[-5:] for test in order[15:]] in (["[old]"] * 10 + ["[new]"] * 10, ["[new]"] * 10 + ["[old]"] * 10)


def test_a_seed_has_its_order_whatever_else_is_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_a=TESTS, test_b=TESTS)
    order = collected(pytester, "--shuffle=7")
    assert collected(pytester, "--shuffle=7") == order
    assert collected(pytester, "--shuffle=7", "test_b.py") == [test for test in order if "test_b" in test]


# What it tells

EVERY_SECOND = """
import pathlib

def test_steady():
    pass

def test_every_second_time():
    seen = pathlib.Path(__file__).with_name("seen")
    if seen.exists():
        seen.unlink()
        raise AssertionError(f"not again\\nand more")
    seen.touch()
"""


def test_a_test_that_fails_every_second_time_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    file = tmp_path / "test_it.py"
    file.write_text(EVERY_SECOND)
    words = [str(file), "--runs=2", "--seed=5", "--no-quiet", "--load=busy"]
    said = subprocess.run([*FINDER, *words], capture_output=True, text=True, check=False)
    assert said.returncode == 1, said.stderr
    # The path is that from the folder which the test and this folder are both in.
    assert re.search(r"^     1      1       0  (\S+/)?test_it.py::test_every_second_time$", said.stdout, re.MULTILINE)
    assert "in seed 6: failed: AssertionError: not again\n" in said.stdout
    assert f"again: make flaky ARGS='{file} --seed 6 --runs 1 --no-quiet --load busy'\n" in said.stdout
    assert "test_steady" not in said.stdout


def told(*outcomes: dict[str, tuple[str, str]], status: int = 0) -> list[str]:
    return [*table([Run(str(at), "again", Path("log"), found, status) for at, found in enumerate(outcomes)])]


def test_what_is_told() -> None:
    well, skipped = ("passed", ""), ("skipped", "")
    assert told({"a": well, "b": skipped}, {"a": well, "b": skipped}) == []
    # The same failure but for its numbers, and one more.
    lines = told({"a": ("failed", "job 1")}, {"a": ("failed", "job 2")}, {"a": ("errored", "job 3")}, {"a": well})
    assert lines[:2] == ["passed failed errored  of 4", "     1      2       1  a"]
    assert [line.strip() for line in lines[2:4]] == ["in 0, 1: failed: job 1", "in 2: errored: job 3"]
    # Neither may a test be skipped now and then, nor be lost with its process.
    assert "in 1: skipped" in "".join(told({"a": well}, {"a": skipped}))
    assert "in 1: missing" in "".join(told({"a": well}, {}, status=1))


# What is left of it


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    return not alive


def test_load_ends_with_the_block() -> None:
    with load(["busy", "disk"]) as pids:
        processes = [psutil.Process(pid) for pid in pids]
        assert len(processes) == (os.cpu_count() or 1) + 1
    assert not any(process.is_running() for process in processes)


def test_load_ends_with_a_parent_that_is_killed() -> None:
    program = "import time; from tests.flaky.load import load\nwith load(['busy']) as pids:\n"
    program += f"    print(*pids, flush=True); time.sleep({PATIENCE})\n"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert processes
    assert gone(processes)


def test_an_interrupted_run_puts_down_what_its_tests_have_put_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    up, down = tmp_path / "up", tmp_path / "down"
    test = "import pathlib, time\ndef test_it():\n    pathlib.Path({up!r}).touch()\n    try:\n"
    test += "        time.sleep({patience})\n    finally:\n        pathlib.Path({down!r}).touch()\n"
    (tmp_path / "test_it.py").write_text(test.format(up=str(up), down=str(down), patience=PATIENCE))
    command = [*FINDER, str(tmp_path / "test_it.py"), "--no-quiet", "--runs=2", "--load=disk"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as finder:
        deadline = time.monotonic() + PATIENCE
        while not up.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        processes = psutil.Process(finder.pid).children(recursive=True)
        finder.send_signal(signal.SIGTERM)
        assert finder.stdout is not None
        said = finder.stdout.read()
    assert finder.returncode == 130
    assert len(processes) == 2
    assert gone(processes)
    assert down.exists()
    assert "1 missing; pytest ended with 2" in said
