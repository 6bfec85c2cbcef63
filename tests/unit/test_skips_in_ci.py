"""In CI, a test that needs the sandbox and does not run is a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with this one's conftest and nothing else."""
    # The conftest sets it for its own run, in this process; monkeypatch puts ours back.
    monkeypatch.setenv("AIRFLOW_HOME", "")
    pytester.makeini("[pytest]\nmarkers = sandbox\n")
    write(pytester, "tests/conftest.py", CONFTEST.read_text())
    return pytester


def write(project: pytest.Pytester, name: str, content: str) -> None:
    path = project.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


SKIPS = """
import pytest

def test_asks_to_skip():
    pytest.skip("no Slurm here")

@pytest.fixture
def slurm():
    pytest.skip("no Slurm here")

def test_fixture_skips(slurm):
    pass

@pytest.mark.skip(reason="no Slurm here")
def test_marked():
    pass

@pytest.mark.xfail(reason="known", strict=True)
def test_expected_failure():
    assert False

def test_passes():
    pass
"""


@pytest.mark.parametrize("folder", ["contract", "integration", "sandbox"])
def test_ci_fails_skips_in_required_folders(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("CI", "true")
    write(project, f"tests/{folder}/test_it.py", SKIPS)
    result = project.runpytest()
    outcomes = result.parseoutcomes()
    assert outcomes.pop("failed", 0) + outcomes.pop("errors", 0) == 3
    assert outcomes == {"passed": 1, "xfailed": 1}
    result.stdout.fnmatch_lines(["*no Slurm here", "CI must run this test*"])


def test_ci_fails_skips_of_marked_tests(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    write(
        project,
        "tests/elsewhere/test_it.py",
        "import pytest\n\n"
        "@pytest.mark.sandbox\ndef test_needs_it():\n    pytest.skip('no Slurm here')\n\n"
        "def test_does_not():\n    pytest.skip('not on this Python')\n",
    )
    project.runpytest().assert_outcomes(failed=1, skipped=1)


def test_ci_fails_a_skipped_module(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    write(project, "tests/integration/test_it.py", "import pytest\npytest.importorskip('no_such_module')\n")
    result = project.runpytest()
    result.assert_outcomes(errors=1)
    assert result.ret != pytest.ExitCode.OK


@pytest.mark.parametrize("value", [None, "", "0", "false"])
def test_skips_stay_skips_outside_ci(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("CI", raising=False)
    else:
        monkeypatch.setenv("CI", value)
    write(project, "tests/integration/test_it.py", SKIPS)
    project.runpytest().assert_outcomes(passed=1, skipped=3, xfailed=1)


def test_unit_tests_may_skip_in_ci(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    write(project, "tests/unit/test_it.py", SKIPS)
    project.runpytest().assert_outcomes(passed=1, skipped=3, xfailed=1)


def test_tests_of_what_cannot_be_installed_may_skip_in_ci(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    project.makeini("[pytest]\nmarkers = terraform\n")
    write(
        project,
        "tests/integration/test_it.py",
        "import pytest\npytestmark = [pytest.mark.terraform, pytest.mark.skipif(True, reason='no Terraform')]\n"
        "def test_it():\n    pass\n",
    )
    project.runpytest().assert_outcomes(skipped=1)
