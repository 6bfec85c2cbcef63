"""Dependencies as Slurm writes them, with names in the place of ids."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_soperator.pipelines.graph import PipelineError, read_links
from airflow_provider_soperator.slurm.dependencies import Dependency

STAGES = ["prepare", "fit", "model.v2", "12"]
RESULT = "{{ ti.xcom_pull(task_ids='a', key='job_id') }}"


@pytest.mark.parametrize(
    ("dependency", "own", "links"),
    [
        (None, "", {}),
        ("", "", {}),
        ("afterok:prepare", "", {"prepare": "afterok"}),
        ("AfterAny:prepare:fit", "", {"prepare": "afterany", "fit": "afterany"}),
        ("afterok:prepare, after:fit+5", "", {"prepare": "afterok", "fit": "after+5"}),
        (["afterok:prepare", "afterany:fit"], "", {"prepare": "afterok", "fit": "afterany"}),
        ("afterok:model.v2", "", {"model.v2": "afterok"}),
        # What is no name is for Slurm.
        ("afterok:77", "afterok:77", {}),
        ("afterok:77:prepare,after:78+3", "afterok:77,after:78+3", {"prepare": "afterok"}),
        ("aftercorr:77_4:77_*", "aftercorr:77_4:77_*", {}),
        ("singleton,afterok:prepare", "singleton", {"prepare": "afterok"}),
        ("afterok:77?afterok:78", "afterok:77?afterok:78", {}),
        (Dependency("afterok", 77), "afterok:77", {}),
        ([Dependency("afterok", 77), "afterok:prepare"], "afterok:77", {"prepare": "afterok"}),
        # A stage may be called as an id looks.
        ("afterok:12:13", "afterok:13", {"12": "afterok"}),
        # A template is nobody's name, whatever it has in it.
        (f"afterok:{RESULT}:prepare", f"afterok:{RESULT}", {"prepare": "afterok"}),
        (f"afterok:{RESULT},after:fit", f"afterok:{RESULT}", {"fit": "after"}),
    ],
)
def test_read(dependency: Any, own: str, links: dict[str, str]) -> None:
    rest, found = read_links("late", dependency, STAGES)
    assert rest == own
    assert {link.upstream: str(link) for link in found} == links


@pytest.mark.parametrize(
    ("dependency", "said"),
    [
        ("afterok:preapre", "late waits for preapre, which is not a stage of the pipeline: did you mean 'prepare'?"),
        ("afterok:x", "late waits for x, which is not a stage of the pipeline: there are prepare, fit, model.v2, 12"),
        ("afterburstbuffer:fit", "late: unknown kind of dependency afterburstbuffer: there are afterok, afterany"),
        ("befor:fit", "late: unknown kind of dependency befor"),
        ("after:fit+five", "late waits for fit+five, but 'five' is not a whole number: write after:fit+5"),
        ("afterok:fit+5", "late waits for fit+5 by afterok, but only after takes minutes"),
        (
            "afterok:fit?afterok:prepare",
            "late waits for any of several (afterok:fit?afterok:prepare), which a pipeline",
        ),
    ],
)
def test_refused(dependency: str, said: str) -> None:
    with pytest.raises(PipelineError) as refused:
        read_links("late", dependency, STAGES)
    assert said in str(refused.value)
