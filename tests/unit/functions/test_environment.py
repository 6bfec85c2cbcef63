"""An environment is built once for its requirements, by one of all jobs, and never used before it is whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_soperator.functions import remote

#: As much of uv as is used. The packages of "broken" cannot be installed.
UV = f"""#!/bin/bash
echo "$@" >>"$UV_CALLS"
case "$1 $2" in
"venv --python") mkdir -p "$4/bin" && ln -s {sys.executable} "$4/bin/python" ;;
"pip install") ! grep broken "$6" ;;
esac
"""


class Machine:
    """A node with uv, on a clock that moves while somebody sleeps."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.calls = folder / "venvs", folder / "calls"
        self.now = 0.0
        #: What others do while somebody sleeps here.
        self.meanwhile: Callable[[], None] = lambda: None
        (folder / "uv").write_text(UV)
        (folder / "uv").chmod(0o755)
        self.calls.touch()
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        patch.setenv("UV_CALLS", str(self.calls))
        # That of the module alone: whoever waits for a process sleeps, too.
        patch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10_000, "it waits for ever"
        self.meanwhile()

    def environment(self, requirements: str = "numpy\n") -> Path:
        return Path(remote.environment("/beside", str(self.folder), "a-key", requirements))

    def built(self) -> int:
        return self.calls.read_text().count("pip install")

    def others_lock(self) -> tuple[Path, Path]:
        """The lock of another builder, and the link it will make."""
        link = Path(self.environment_link())
        lock = link.with_name(f"{link.name}.lock")
        lock.mkdir(parents=True)
        return lock, link

    def environment_link(self) -> str:
        return f"{self.folder}/a-key-{sys.implementation.cache_tag}-{os.uname().machine}"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_it_is_built_once(machine: Machine) -> None:
    home = machine.environment()
    assert (home / "bin/python").exists()
    assert machine.environment() == home
    assert machine.built() == 1
    name = Path(machine.environment_link()).name
    assert {file.name for file in machine.folder.iterdir()} == {name, f"{name}.txt", home.name}
    assert (machine.folder / f"{name}.txt").read_text() == "numpy\n"


def test_one_that_cannot_be_built_leaves_nothing(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        machine.environment("broken\n")
    # A retry may help.
    assert ended.value.code == 1
    said = capfd.readouterr()
    assert said.out == "broken\n"
    assert "the requirements cannot be installed: " in said.err
    assert sorted(file.suffix for file in machine.folder.iterdir()) == [".failed", ".txt"]


def test_an_interpreter_that_is_gone_has_its_environment_built_anew(machine: Machine) -> None:
    home = machine.environment()
    (home / "bin/python").unlink()
    assert machine.environment() != home
    assert machine.built() == 2


def test_others_wait_for_the_one_who_builds(machine: Machine, tmp_path: Path) -> None:
    lock, link = machine.others_lock()

    def builds() -> None:
        # For longer than a lock is valid that nobody touches.
        os.utime(lock, (machine.now, machine.now))
        if machine.now > 3 * remote.STALE:
            (tmp_path / "theirs/bin").mkdir(parents=True)
            (tmp_path / "theirs/bin/python").touch()
            link.symlink_to(tmp_path / "theirs")
            lock.rmdir()
            machine.meanwhile = lambda: None

    machine.meanwhile = builds
    assert machine.environment() == tmp_path / "theirs"
    assert machine.built() == 0


def test_others_fail_with_the_one_for_whom_they_wait(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        machine.environment("broken\n")
    lock, link = machine.others_lock()

    def fails() -> None:
        link.with_name(f"{link.name}.failed").write_text("the requirements cannot be installed: see job 17")
        lock.rmdir()

    machine.meanwhile = fails
    with pytest.raises(SystemExit) as ended:
        machine.environment("broken\n")
    assert ended.value.code == 1
    assert capfd.readouterr().err.endswith("airflow: the requirements cannot be installed: see job 17\n")
    assert machine.built() == 1
    assert not lock.exists()
    # A later try may have better luck.
    assert machine.environment().parent == machine.folder


def test_the_lock_of_one_who_was_killed_is_void(machine: Machine) -> None:
    lock, _ = machine.others_lock()
    assert machine.environment().parent == machine.folder
    assert machine.now > remote.STALE
    assert machine.built() == 1
    assert not lock.exists()


def test_a_cancelled_builder_takes_its_lock_along(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    monkeypatch.setattr(remote, "run", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        machine.environment()
    assert [file.suffix for file in machine.folder.iterdir()] == [".txt"]
    assert signal.getsignal(signal.SIGTERM) is before
