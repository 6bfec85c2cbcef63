"""The wheels: built twice they are the same, and hold all that is in the tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import airflow_provider_soperator
import sandbox

# They are built once.
pytestmark = pytest.mark.xdist_group("wheels")

ROOT = Path(__file__).parents[2]
#: Packages, by the wheel that each is in; and what is beside a package's code for those who build or browse it.
WHEELS = {"airflow_provider_soperator": "airflow_provider_soperator", "soperator_sandbox": "sandbox"}
BESIDE = {f"sandbox/{name}" for name in ("LICENSE", "NOTICE", "README.md", "pyproject.toml")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    said = subprocess.run([ROOT / "scripts/wheel", folder], capture_output=True, text=True, check=False)
    # It compares two builds, in other folders and times.
    assert said.returncode == 0, said.stderr
    return folder


def wheel(built: Path, distribution: str) -> ZipFile:
    return ZipFile(built / f"{distribution}-{airflow_provider_soperator.__version__}-py3-none-any.whl")


@pytest.mark.parametrize("distribution", WHEELS)
def test_a_wheel_has_all_files_of_its_package(built: Path, distribution: str) -> None:
    package = WHEELS[distribution]
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", package], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tree = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()} - BESIDE
    packed = {name for name in wheel(built, distribution).namelist() if ".dist-info/" not in name}
    assert packed == tree
    assert len(tree) > 30


def test_one_version() -> None:
    assert sandbox.__version__ == airflow_provider_soperator.__version__


def test_what_is_unpacked_runs_without_the_clone(built: Path, tmp_path: Path) -> None:
    for distribution in WHEELS:
        wheel(built, distribution).extractall(tmp_path)
    program = (
        "import airflow_provider_soperator as provider, sandbox, sandbox.compose, sandbox.cli, sandbox.pytest_plugin\n"
        "from airflow_provider_soperator.page.app import make_app\n"
        "make_app()\n"
        "assert sandbox.compose.INSIDE.is_dir()\n"
        "print(provider.__file__, sandbox.__file__)"
    )
    said = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-c", program],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "AIRFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    places = said.stdout.splitlines()[-1].split()
    assert [Path(place).is_relative_to(tmp_path) for place in places] == [True, True]
