"""The program that makes the executor's folder and its environment, run on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from airflow_provider_soperator.executors.environment import (
    PrepareFolder,
    WithdrawLegs,
    installed_packages,
    local_packages,
)
from airflow_provider_soperator.executors.task_jobs import ExecutorFolder
from airflow_provider_soperator.slurm.files import FileError, FileRequest
from airflow_provider_soperator.slurm.requests.commands import CommandOutput
from tests.patience import PATIENCE

T = TypeVar("T")

#: Stands for uv, which would need an index: what it makes is this Python, and it notes that it was called.
UV = f"""#!/bin/sh
echo "$@" >>"$CALLS"
[ "$1" = venv ] || exit 0
for last; do :; done
mkdir -p "$last/bin"
printf '#!/bin/sh\\nexec {sys.executable} "$@"\\n' >"$last/bin/python"
chmod +x "$last/bin/python"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uv").write_text(UV)
    (tools / "uv").chmod(0o755)
    return tmp_path


def run(request: FileRequest[T], home: Path) -> T:
    command = request.command()
    environment = {**os.environ, "PATH": f"{home}/tools:{os.environ['PATH']}", "CALLS": str(home / "calls")}
    done = subprocess.run(
        command.argv, input=command.stdin, capture_output=True, cwd=home, env=environment, timeout=PATIENCE, check=False
    )
    return request.read(CommandOutput(done.returncode, done.stdout, done.stderr))


def test_a_given_python_is_used_and_the_folder_is_the_owners(home: Path) -> None:
    folder = run(PrepareFolder("airflow/executor", sys.executable), home)
    assert folder == ExecutorFolder(f"{home}/airflow/executor", sys.executable)
    assert (home / "airflow/executor").stat().st_mode & 0o777 == 0o700
    assert (home / "airflow/executor/tasks").is_dir()


@pytest.mark.parametrize(
    ("python", "airflow", "said"),
    [
        ("/no/python", "3.3.2", "there is no Python /no/python: correct executor_python"),
        ("/bin/true", "3.3.2", "has Airflow , and the scheduler has 3.3.2"),
        ("/bin/false", "3.3.2", "has no Airflow: install apache-airflow-core==3.3.2"),
        (sys.executable, "2.9.0", "and the scheduler has 2.9.0: install the same there"),
    ],
)
def test_what_is_missing_is_told(home: Path, python: str, airflow: str, said: str) -> None:
    with pytest.raises(FileError, match=said) as caught:
        run(PrepareFolder("executor", python, airflow=airflow), home)
    # As the doctor tells it.
    assert caught.value.remedy
    assert str(caught.value) == f"{caught.value.said}: {caught.value.remedy}"


def test_why_an_environment_cannot_be_made_is_told_with_what_to_do(home: Path) -> None:
    said = "seq -f 'Collecting %g' 99; echo 'mysqlclient: mysql_config: No such file or directory'"
    (home / "tools/uv").write_text(UV.replace("|| exit 0", f"|| {{ ( {said} ) >&2; exit 1; }}"))
    with pytest.raises(FileError, match=r"the venv cannot be made: see .* executor_packages, or set \w+$") as caught:
        run(PrepareFolder("executor", packages=("mysqlclient",)), home)
    assert caught.value.lines[-1] == "mysqlclient: mysql_config: No such file or directory"
    assert 20 < len(caught.value.lines) < 50
    assert caught.value.remedy.startswith("see the other lines")


def test_an_environment_is_made_once_for_its_content(home: Path) -> None:
    request = PrepareFolder("executor", packages=("apache-airflow==3.3.2", "numpy==2"))
    folder = run(request, home)
    assert folder.python == f"{home}/executor/environments/{request.environment}/bin/python"
    assert run(request, home) == folder
    calls = (home / "calls").read_text().splitlines()
    assert [line.split()[0] for line in calls] == ["venv", "pip"]
    other = run(replace(request, packages=("apache-airflow==3.3.2",)), home)
    assert other.python != folder.python


def test_a_wheel_that_was_built_anew_makes_another_environment(home: Path) -> None:
    wheel = home / "library.whl"
    request = PrepareFolder("executor", packages=("apache-airflow", str(wheel)))
    made = []
    for content in ("old", "old", "new"):
        wheel.write_text(content)
        made.append(run(request, home).python)
    assert (made[0] == made[1], made[1] == made[2]) == (True, False)


def test_an_environment_that_was_left_half_made_is_made_anew(home: Path) -> None:
    request = PrepareFolder("executor", packages=("apache-airflow",))
    folder = run(request, home)
    (Path(folder.python).parents[1] / "complete").unlink()
    assert run(request, home) == folder
    assert len((home / "calls").read_text().splitlines()) == 4


def test_old_files_are_removed(home: Path) -> None:
    request = PrepareFolder("executor", sys.executable, keep=8)
    folder = run(request, home)
    old, new = Path(folder.tasks, "old"), Path(folder.tasks, "new")
    for file in (old, new):
        file.touch()
    os.utime(old, (0, 0))
    run(request, home)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_file_that_goes_while_old_ones_are_looked_for_fails_nothing(home: Path) -> None:
    find = home / "tools/find"
    find.write_text("#!/bin/sh\necho 'find: No such file or directory' >&2\nexit 1\n")
    find.chmod(0o755)
    assert run(PrepareFolder("executor", sys.executable), home).root == f"{home}/executor"


def test_an_environment_that_no_scheduler_uses_any_more_is_removed(home: Path) -> None:
    unused, used = (
        PrepareFolder("executor", packages=("apache-airflow", package), keep=8) for package in ("numpy==1", "numpy==2")
    )
    made = {request: Path(run(request, home).python).parents[1] for request in (unused, used)}
    for folder in made.values():
        os.utime(f"{folder}.lock", (0, 0))
    # Its scheduler looks after it each day.
    run(used, home)
    assert [folder.exists() for folder in made.values()] == [False, True]
    assert Path(run(unused, home).python).exists()


def test_the_packages_are_those_of_this_process() -> None:
    found = installed_packages()
    assert any(package.startswith("apache-airflow-core==") for package in found)
    # It comes from this folder, and no index has it.
    assert not any(package.startswith("airflow-provider-soperator==") for package in found)


def test_a_package_that_another_copy_hides_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment can have two versions of one."""
    for folder, name, version in (("venv", "some_package", "2"), ("system", "Some-Package", "1")):
        info = tmp_path / folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "direct_url.json").write_text("{}")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "venv"), str(tmp_path / "system")])
    assert installed_packages() == ("some_package==2",)
    monkeypatch.setattr(sys, "path", sys.path[::-1])
    assert (installed_packages(), local_packages()) == ((), {"Some-Package"})


def test_legs_are_withdrawn_where_there_is_no_folder_yet_unless_it_cannot_be_made(home: Path) -> None:
    folder = ExecutorFolder(f"{home}/airflow/executor", "")
    for leg in ("a", "b"):
        run(WithdrawLegs(folder.tasks, folder.withdrawal([leg])), home)
    assert sorted(file.name for file in Path(folder.tasks).iterdir()) == ["a.withdrawn", "b.withdrawn"]
    (home / "file").touch()
    with pytest.raises(FileError, match="cannot create directory"):
        run(WithdrawLegs(f"{home}/file/tasks", folder.withdrawal(["a"])), home)
