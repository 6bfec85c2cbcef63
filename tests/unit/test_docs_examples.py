"""The DAGs in the documentation are ones that Airflow takes as they stand, and what it imports is there."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider_soperator.cli.rehearsal import Unknown, rehearsed
from airflow_provider_soperator.operators.pipeline import SbatchPipeline
from tests.unit.operators.dags import dags_made, segments, take

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = {
    f"{page.name}:{number}": code
    for page in PAGES
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))
    if "@dag(" in code or "capacity_dag(" in code or "action_dags(" in code
}
DAGS = {file.name: file for file in sorted((ROOT / "dags").glob("*.py"))}


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_makes_a_dag(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside the scripts that its page names."""
    made = dags_made(monkeypatch)
    page = next(page for page in PAGES if name.startswith(f"{page.name}:")).read_text()
    for script in re.findall(r"`(\w+\.(?:sh|sbatch))`", page):
        (tmp_path / script).write_text("#!/bin/bash\n")
    exec(compile(EXAMPLES[name], tmp_path / "example.py", "exec"), {"__name__": "example"})
    assert made
    for dag in made:
        assert dag.tasks
        take(dag)
        render(dag, monkeypatch)


@pytest.mark.parametrize("name", DAGS)
def test_a_dag_can_be_triggered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = dags_made(monkeypatch)
    exec(compile(DAGS[name].read_text(), DAGS[name], "exec"), {"__name__": "example", "__file__": str(DAGS[name])})
    for dag in made:
        render(dag, monkeypatch)


def render(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run of ``airflow dags trigger``, which has no logical date."""
    # One without a value gets it from a form.
    monkeypatch.setattr(Param, "resolve", lambda param, *_, **__: param.value if param.has_value else "1")
    monkeypatch.setattr(Unknown, "__call__", lambda *_: (), raising=False)
    for task in dag.tasks:
        instance: Any = rehearsed(dag, task)["ti"]
        instance._ti_context_from_server.dag_run.logical_date = instance._cached_template_context = None
        context = instance.get_template_context()
        if isinstance(task, MappedOperator):
            task.render_template({name: task.partial_kwargs.get(name) for name in task.template_fields}, context)
        else:
            task.render_template_fields(context)


@pytest.mark.parametrize("name", ["README.md:0", "pipelines.md:0"])
def test_its_pipeline_is_submitted_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = dags_made(monkeypatch)
    exec(compile(EXAMPLES[name], name, "exec"), {"__name__": "example"})
    groups = [group for dag in made for group in dag.task_group.get_task_group_dict().values()]
    assert [len(stages) for group in groups if isinstance(group, SbatchPipeline) for stages in segments(group)] == [3]


def test_each_operator_has_a_page_with_one() -> None:
    pages = {name.partition(":")[0] for name in EXAMPLES}
    runs = {"sbatch.md", "task-sbatch.md", "pipelines.md", "sensors.md", "failures.md", "events.md"}
    assert runs | {"capacity.md", "cluster.md", "health.md", "nodes.md", "nebius.md"} <= pages


def test_what_it_names_of_the_provider_is_there() -> None:
    names = {name for page in PAGES for name in re.findall(r"\bairflow_provider_soperator(?:\.\w+)+", page.read_text())}
    assert "airflow_provider_soperator.nebius.api" in names
    for name in names:
        resolve_name(name)
