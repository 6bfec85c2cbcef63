"""Public parameters are documented one by one, and listed in docs/parameters.md.

After a change, ``python -m tests.unit.test_parameters`` writes the lists anew. The words above them are written by
hand: a new parameter takes its name from there, or adds its word.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_provider_soperator.decorators.sbatch import _SbatchDecoratedOperator, sbatch_task
from airflow_provider_soperator.operators.pipeline import SbatchPipeline, after
from airflow_provider_soperator.operators.sbatch import SbatchOperator, retry
from airflow_provider_soperator.slurm.job_description import FIELDS, OPTIONS
from tests.unit.test_provider_info import PUBLIC

PACKAGE = "airflow_provider_soperator"
PAGE = Path(__file__).parents[2] / "docs" / "parameters.md"
#: Everything after it is written by this module.
MARK = "<!-- From the docstrings, by python -m tests.unit.test_parameters -->"
#: Parameters of a job, with sbatch's options for them.
SBATCH = {name: " or ".join(f"`--{one.long}`" for one in OPTIONS if one.field == name) for name in FIELDS}
#: Titles, and where their classes are, by the beginnings of modules' names.
SECTIONS = {
    "Operators": ("operators.",),
    "Sensors": ("sensors.",),
    "Asset watchers": ("triggers.",),
    "Schedules, timetables and targets": ("capacity.", "timetables."),
}
EVENTS = (
    "ActiveCheckFailedTrigger",
    "ClusterUnavailableTrigger",
    "NodeUnhealthyTrigger",
    "SlurmJobFinishedTrigger",
    "SlurmQueueLongTrigger",
)
MODULES = {
    **PUBLIC,
    "triggers.events": EVENTS,
    "capacity.holidays": ("read_holidays",),
    "capacity.order": ("Timeouts",),
    "capacity.overrides": ("Override",),
    "hooks.prometheus": ("PrometheusHook",),
}
#: Parameters of bases that a class gives itself.
SET_BY_ITSELF = {"ProvisionClusterOperator": ("timeout",)}
#: Other names for ideas that have a word.
RETIRED = {
    "api_conn_id", "approve_within", "at_least", "at_most", "at_once", "dry_run", "fetch", "fetch_on", "for_minutes",
    "for_seconds", "how", "hurry", "jobs", "lasting", "lead_time", "more_than", "no_change_before", "on_existing",
    "react_within", "state", "wait_for", "wait_ready", "when_busy", "when_running", "whole_blocks",
}  # fmt: skip


def own_parameters(made: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = inspect.signature(made).parameters.values()
    return {
        one.name: one for one in found if one.name != "self" and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }


def parameters(of: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a class, those of its bases last, or of a function."""
    if not isinstance(of, type):
        return own_parameters(of)
    found: dict[str, inspect.Parameter] = {}
    for base in of.__mro__:
        if base.__module__.startswith(PACKAGE) and "__init__" in vars(base):
            made = vars(base)["__init__"]
            found |= {name: one for name, one in own_parameters(made).items() if name not in found}
            if not any(one.kind is one.VAR_KEYWORD for one in inspect.signature(made).parameters.values()):
                break
    return {name: one for name, one in found.items() if name not in SET_BY_ITSELF.get(of.__name__, ())}


def texts(of: Any) -> dict[str, str]:
    """The ``:param`` lines of a class and its bases, or of a function."""
    found: dict[str, str] = {}
    for one in of.__mro__ if isinstance(of, type) else (of,):
        if one.__module__.startswith(PACKAGE):
            lines = re.findall(r"^ *:param (\w+): (.*(?:\n {8,}(?! *:).*)*)", one.__doc__ or "", re.MULTILINE)
            found = {name: " ".join(text.split()) for name, text in lines} | found
    return found


def public() -> Iterator[tuple[str, str, Any]]:
    """Module, name and object of everything with parameters that a DAG file uses."""
    for module, names in sorted(MODULES.items()):
        if not module.startswith(("hooks.", "provisioning")):
            for name in names:
                yield module, name, getattr(import_module(f"{PACKAGE}.{module}"), name)
    yield "operators.pipeline", "SbatchPipeline.of", SbatchPipeline.of
    yield "operators.pipeline", "SbatchPipeline.from_shell", SbatchPipeline.from_shell
    yield "operators.pipeline", "after", after
    yield "operators.sbatch", "retry", retry


def default(parameter: inspect.Parameter) -> str:
    """A default as a reader wants to see it."""
    value = parameter.default
    if parameter.name == "deferrable":
        return "`default_deferrable` of Airflow"
    if value is parameter.empty:
        return "required"
    if type(value).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
        return "empty"
    if isinstance(value, timedelta):
        return str(value) if value else "0"
    if value is None or value in ((), ""):
        return ""
    if isinstance(value, Enum):
        value = value.value
    return f"`{value!r}`".replace("'", '"')


def table(of: Any) -> Iterator[str]:
    said = texts(of)
    templates = set(getattr(of, "template_fields", ()))
    has_templates = bool(templates) and not issubclass(of, BaseTrigger)
    if "job" in templates:
        # All options of the job are in it.
        templates |= {name for name in parameters(of) if name not in own_words(of)} | {"sbatch_args"}
    columns: dict[str, Callable[[str], str]] = {
        "parameter": lambda name: f"`{name}`",
        "default": lambda name: default(parameters(of)[name]),
        "template": lambda name: "yes" if name in templates else "",
        "sbatch": lambda name: SBATCH.get(name, ""),
        "": lambda name: "" if of is SbatchOperator and name in SBATCH else said[name],
    }
    if not has_templates:
        del columns["template"]
    if of is not SbatchOperator:
        del columns["sbatch"]
    yield from rows(columns, parameters(of))


def rows(columns: Mapping[str, Callable[[str], str]], names: Iterable[str]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |".replace("|  |", "| |")
    yield "|" + "---|" * len(columns)
    for name in names:
        yield f"| {' | '.join(cell(name) for cell in columns.values())} |".replace("``", "`")


def own_words(of: type) -> set[str]:
    """The parameters of ``SbatchOperator`` that are no options of the job."""
    return {name for name, one in parameters(of).items() if one.default is not None} | {"on_finish"}


def listing() -> str:
    """The lists of the page."""
    lines = [MARK]
    everything = list(public())
    for title, beginnings in SECTIONS.items():
        lines += ["", f"## {title}"]
        for module, name, of in everything:
            if module.startswith(beginnings):
                lines += [
                    "",
                    f"### {name}",
                    "",
                    f"`{PACKAGE}.{module}`",
                    "",
                    *(table(of) if parameters(of) else ["No parameters."]),
                ]
    lines += ["", "## The decorator", "", "### @task.sbatch", ""]
    own_of_jobs = "`script`, `command`, `remote_script`, `args`, `result` and `array`"
    lines += [f"Those of `SbatchOperator`, except {own_of_jobs}, and:", ""]
    said = texts(sbatch_task)
    own = {**own_parameters(sbatch_task), **own_parameters(_SbatchDecoratedOperator.__init__)}
    lines += rows({"parameter": "`{}`".format, "default": lambda name: default(own[name]), "": said.__getitem__}, own)
    lines += ["", "## Hooks", "", "Their clients are in [connection.md](connection.md#clients)."]
    for module, names in sorted(MODULES.items()):
        if module.startswith("hooks."):
            for name in names:
                lines += ["", f"### {name}", "", f"`{PACKAGE}.{module}`", "", *hook(module, name)]
    lines += ["", "## Descriptions of clusters", "", f"In `{PACKAGE}.provisioning`; see [cluster.md](cluster.md)."]
    for name in PUBLIC["provisioning"]:
        of = getattr(import_module(f"{PACKAGE}.provisioning"), name)
        lines += ["", f"### {name}", "", first_line(of), "", *described(of)]
    return "\n".join(lines) + "\n"


def first_line(of: Any) -> str:
    return (inspect.getdoc(of) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")


def hook(module: str, name: str) -> Iterator[str]:
    """A hook's parameters and public methods."""
    of = getattr(import_module(f"{PACKAGE}.{module}"), name)
    yield from (first_line(of), "", *described(of), "")
    methods = {
        one: made
        for one, made in vars(of).items()
        if inspect.isfunction(made) and inspect.getdoc(made) and not one.startswith(("_", "get_"))
    }
    yield from rows(
        {
            "method": lambda one: f"`{one}({', '.join(own_parameters(methods[one]))})`",
            "": lambda one: first_line(methods[one]),
        },
        methods,
    )


def described(of: type) -> Iterator[str]:
    """The parameters of a class, with its ``:param`` lines or the comments before its fields, where it has them."""
    said = {
        name: " ".join(text.replace("#:", "").split())
        for base in reversed(of.__mro__)
        if base.__module__.startswith(PACKAGE)
        for text, name in re.findall(r"^((?: +#: .*\n)+) +(\w+):", inspect.getsource(base), re.MULTILINE)
    }
    said |= texts(of)
    yield from rows(
        {
            "parameter": "`{}`".format,
            "default": lambda name: default(parameters(of)[name]),
            "": lambda name: said.get(name, ""),
        },
        parameters(of),
    )


def words() -> Mapping[str, str]:
    """The part of the page that is written by hand."""
    head, mark, lists = PAGE.read_text().partition(MARK)
    return {"head": head, "lists": mark + lists}


def test_the_page_lists_all_parameters() -> None:
    assert words()["lists"] == listing(), "docs/parameters.md differs: run python -m tests.unit.test_parameters"


@pytest.mark.parametrize(("name", "of"), [(name, of) for _, name, of in public()])
def test_each_parameter_has_a_line(name: str, of: Any) -> None:
    assert texts(of).keys() - SET_BY_ITSELF.get(of.__name__, ()) == parameters(of).keys()


def test_each_parameter_of_the_decorator_has_a_line() -> None:
    own = {**own_parameters(sbatch_task), **own_parameters(_SbatchDecoratedOperator.__init__)}
    assert texts(sbatch_task).keys() == own.keys()


@pytest.mark.parametrize(("name", "of"), [(name, of) for _, name, of in public()])
def test_one_idea_has_one_name(name: str, of: Any) -> None:
    assert parameters(of).keys() & RETIRED == set()


def test_words_that_classes_share_are_parameters() -> None:
    shared = {
        word
        for row in re.findall(r"^\| (`.*?`) \|", words()["head"], re.MULTILINE)
        for word in re.findall(r"`(\w+)`", row)
    }
    known = {name for _, _, of in public() for name in parameters(of)} | {"airflow_conn_id", "ranks", "srun_args"}
    assert shared <= known, shared - known


if __name__ == "__main__":
    PAGE.write_text(words()["head"] + listing())
