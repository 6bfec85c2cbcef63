"""A shell script of chained calls of sbatch becomes a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_provider_soperator.operators.pipeline import PipelineError, SbatchPipeline
from airflow_provider_soperator.pipelines.graph import Link
from airflow_provider_soperator.pipelines.shell import stages_of

SCRIPT = """#!/bin/bash
DATA=/data/$1
JOB1=$(sbatch --parsable preprocess.sh "$DATA")
JOB2=$(sbatch --parsable --dependency=afterok:$JOB1 -N 2 --array=0-3 train.sh)
sbatch --dependency=afterany:$JOB2,after:$JOB1+5,singleton --wrap 'echo {{ not a template }} ${#A[@]}'
"""


def test_stages(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/bash\necho ${#FILES[@]}\n")
    first, second, third = stages_of(SCRIPT, tmp_path, {"1": "x"}, ())
    assert first == ("preprocess", {"remote_script": "preprocess.sh", "args": ["/data/x"]}, [])
    name, options, links = second
    # What lies beside the DAG is sent, as it is.
    assert options["script"] == "{% raw %}#!/bin/bash\necho ${#FILES[@]}\n{% endraw %}"
    assert (name, options["nodes"], options["array"], links) == ("train", 2, "0-3", [Link("preprocess")])
    name, options, links = third
    assert options["command"].startswith("{% raw %}echo {{ not")
    assert options["dependency"] == "singleton"
    assert set(links) == {Link("train", "afterany"), Link("preprocess", "after", 5)}


def test_a_pipeline() -> None:
    with DAG("of_shell", schedule=None) as dag:
        SbatchPipeline.from_shell("model", SCRIPT, variables={"1": "x"})
    assert dag.get_task("model.train").upstream_task_ids == {"model.preprocess"}
    dag.validate()
    dag.check_cycle()
    dag.resolve_template_files()


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"there is no script run_all\.sh in"):
        stages_of("run_all.sh", tmp_path, {}, ())
    with pytest.raises(PipelineError, match="line 2: expand is not for the stages"):
        stages_of("A=$(sbatch --parsable a.sh)\nsbatch -d expand:$A b.sh\n", tmp_path, {}, ())
