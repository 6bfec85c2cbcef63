"""A shell script of chained calls of sbatch becomes a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_soperator.operators.pipeline import PipelineError, SbatchPipeline
from airflow_provider_soperator.pipelines.chains.reading import task_parameters
from airflow_provider_soperator.pipelines.chains.standins import ShellChainError

SCRIPT = """#!/bin/bash
DATA=/data/$1
JOB1=$(sbatch --parsable preprocess.sh "$DATA")
JOB2=$(sbatch --parsable --dependency=afterok:$JOB1 -N 2 --array=0-3 train.sh)
sbatch --dependency=afterany:$JOB2,after:$JOB1+5,singleton --wrap 'echo {{ not a template }} ${#A[@]}'
"""


def test_stages(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/bash\necho ${#FILES[@]}\n")
    found = task_parameters(SCRIPT, tmp_path, {"1": "x"}, ())
    assert list(found) == ["preprocess", "train", "job"]
    first, second, third = found.values()
    assert first == {"remote_script": "preprocess.sh", "args": ["/data/x"]}
    # What lies beside the DAG is sent, as it is.
    assert second["script"] == "{% raw %}#!/bin/bash\necho ${#FILES[@]}\n{% endraw %}"
    assert (second["nodes"], second["array"], second["dependency"]) == (2, "0-3", "afterok:preprocess")
    assert third["command"].startswith("{% raw %}echo {{ not")
    assert third["dependency"] == "afterany:train,after:preprocess+5,singleton"


def test_a_job_that_waits_for_its_name_has_the_name_that_sbatch_gives_it(tmp_path: Path) -> None:
    (tmp_path / "own.sh").write_text("#!/bin/sh\n#SBATCH -J own\nhostname\n")
    (tmp_path / "y").mkdir()
    for script in ("x.sh", "y/x.sh"):
        (tmp_path / script).write_text("#!/bin/sh\nhostname\n")
    calls = ("x.sh", "x.sh", "y/x.sh", "own.sh", "-J z x.sh", "--wrap hostname", "< x.sh", "<<< '#!/bin/sh'")
    found = task_parameters("".join(f"sbatch -d singleton {call}\n" for call in calls), tmp_path, {}, ())
    assert [one.get("name") for one in found.values()] == ["x.sh"] * 3 + [None, "z", "wrap", "sbatch", "sbatch"]
    assert not any("name" in one for one in task_parameters("sbatch x.sh\nsbatch x.sh\n", tmp_path, {}, ()).values())


@pytest.mark.parametrize(
    ("calls", "names"),
    [
        (("x.sh", "other.sh", "-d singleton x.sh"), ["x.sh", None, "x.sh"]),
        (("x.sh", "-J z x.sh", "-d singleton -J x.sh y.sh"), ["x.sh", "z", "x.sh"]),
        (("--wrap a", "x.sh", "-d Singleton --wrap b"), ["wrap", None, "wrap"]),
        # The first is on the cluster, and may be called so by itself.
        (("there.sh", "-d singleton -J there x.sh"), [None, "there"]),
        (("x.sh", "waits.sh", "waits.sh"), [None, "waits.sh", "waits.sh"]),
        (("own.sh", "-d singleton -J own x.sh"), [None, "own"]),
    ],
)
def test_jobs_that_others_wait_for_by_their_name_have_it_too(
    calls: tuple[str, ...], names: list[str | None], tmp_path: Path
) -> None:
    (tmp_path / "x.sh").write_text("#!/bin/sh\nhostname\n")
    (tmp_path / "own.sh").write_text("#!/bin/sh\n#SBATCH -J own\nhostname\n")
    (tmp_path / "waits.sh").write_text("#!/bin/sh\n#SBATCH --dependency=singleton\nhostname\n")
    found = task_parameters("".join(f"sbatch {call}\n" for call in calls), tmp_path, {}, ())
    assert [one.get("name") for one in found.values()] == names


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("sbatch -d singleton there.sh", 1),
        ("sbatch there.sh\nsbatch -d singleton -J there.sh --wrap hostname", 1),
        ("sbatch -d singleton -J x --wrap hostname\nsbatch -d singleton there.sh", 2),
    ],
)
def test_a_job_that_waits_for_a_name_that_only_the_cluster_knows_is_refused(
    script: str, line: int, tmp_path: Path
) -> None:
    with pytest.raises(ShellChainError, match=rf"line {line}: .*singleton.*: give sbatch --job-name"):
        task_parameters(f"{script}\n", tmp_path, {}, ())
    named = script.replace(" there.sh", " -J there.sh there.sh")
    assert "there.sh" in {one.get("name") for one in task_parameters(f"{named}\n", tmp_path, {}, ()).values()}


def test_a_pipeline() -> None:
    with DAG("of_shell", schedule=None) as dag:
        SbatchPipeline.from_shell("model", SCRIPT, variables={"1": "x"})
    assert dag.get_task("model.train").upstream_task_ids == {"model.preprocess"}
    assert dag.get_task("model.job").job["dependency"] == "singleton"
    assert dag.get_edge_info("model.train", "model.job")["label"] == "afterany"
    assert dag.get_edge_info("model.preprocess", "model.job")["label"] == "after+5"
    dag.validate()
    dag.check_cycle()
    dag.resolve_template_files()


def test_a_script_may_be_called_as_a_task_that_the_pipeline_adds() -> None:
    script = "submit=$(sbatch --parsable a.sh)\nsbatch -d afterok:$submit submit.sh\nsbatch -J cancel_rest c.sh"
    with DAG("of_shell", schedule=None) as dag:
        SbatchPipeline.from_shell("model", script)
    assert {"model.submit_job", "model.submit_job_2", "model.cancel_rest_job", "model.submit"} <= dag.task_dict.keys()
    assert dag.get_task("model.submit_job_2").upstream_task_ids == {"model.submit_job"}


@pytest.mark.parametrize(
    ("export", "env"),
    [
        ("NONE", None),
        ("A,C=3", {"A": "1"}),
        ("C=3", None),
        ("ALL", {"A": "1", "B": "2"}),
        ("all,C=3", {"A": "1", "B": "2"}),
    ],
)
def test_a_script_that_says_which_variables_it_gets_has_no_others(
    export: str, env: dict[str, str] | None, tmp_path: Path
) -> None:
    (tmp_path / "x.sh").write_text(f"#!/bin/sh\n#SBATCH --export={export}\nenv\n")
    exports = "export A=1 B=2\n"
    found = task_parameters(f"{exports}sbatch x.sh\nsbatch --export=ALL x.sh\n", tmp_path, {}, ())
    assert [one.get("env") for one in found.values()] == [env, {"A": "1", "B": "2"}]


def test_a_whole_path_is_one_on_the_cluster_whatever_this_machine_has_there(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("#!/bin/sh\n")
    found = task_parameters(f"sbatch {tmp_path}/x.sh\ncd {tmp_path}\nsbatch x.sh\n", tmp_path, {}, (), by_name=True)
    assert [one["remote_script"] for one in found.values()] == [f"{tmp_path}/x.sh"] * 2


def test_folders_count_from_where_the_script_would_run(tmp_path: Path) -> None:
    (tmp_path / "own.sh").write_text("#!/bin/sh\n#SBATCH --chdir=own\n")
    (tmp_path / "whole.sh").write_text("#!/bin/sh\n#SBATCH -D /scratch\n")
    (tmp_path / "x.sh").write_text("#!/bin/sh\n")
    calls = {
        "(cd run && sbatch ../x.sh)": ("run", "/train/run"),
        "(cd run && sbatch ../own.sh)": ("run/own", "/train/run/own"),
        "(cd run && sbatch -D said ../own.sh)": ("run/said", "/train/run/said"),
        "(cd run && sbatch ../whole.sh)": ("/scratch", "/scratch"),
        "(cd /run && sbatch <<< $'#!/bin/sh\\n#SBATCH -D own')": ("/run/own", "/run/own"),
        "(cd run && sbatch --wrap hostname)": ("run", "/train/run"),
        "sbatch -D said x.sh": ("said", "/train/said"),
        # Here the script, or what tasks have by default, is enough.
        "sbatch own.sh": (None, "/train/own"),
        "sbatch x.sh": (None, None),
    }
    text = "".join(f"{call}\n" for call in calls)
    for number, start in enumerate(("", "/train")):
        found = task_parameters(text, tmp_path, {}, (), start=start)
        assert [one.get("chdir") for one in found.values()] == [folders[number] for folders in calls.values()]
    on_cluster = task_parameters("(cd run && sbatch a.sh)\nsbatch a.sh\n", tmp_path, {}, (), start="/train")
    assert list(on_cluster.values()) == [
        {"chdir": "/train/run", "remote_script": "/train/run/a.sh"},
        {"remote_script": "a.sh"},
    ]
    script = "(cd run && sbatch -J a --wrap a)\n(cd run && sbatch -J b -D /b --wrap b)\nsbatch -J c --wrap c\n"
    with DAG("of_shell", schedule=None, default_args={"chdir": "/{{ ds }}"}) as dag:
        SbatchPipeline.from_shell("model", script)
        SbatchPipeline.from_shell("own", script, default_args={"chdir": "/own"})
    folders = {task.task_id: task.job["chdir"] for task in dag.tasks if task.task_id[-2:] in (".a", ".b", ".c")}
    assert list(folders.values()) == ["/{{ ds }}/run", "/b", "/{{ ds }}", "/own/run", "/b", "/own"]


def test_a_variable_may_be_a_number(tmp_path: Path) -> None:
    numbers: Any = {"N": 4, 1: 7}
    [found] = task_parameters("sbatch -N $N -J fit$1 x.sh\n", tmp_path, numbers, ()).values()
    assert (found["nodes"], found["name"]) == (4, "fit7")


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="variables: DAY is a template"):
        task_parameters("sbatch -J $DAY x.sh\n", tmp_path, {"DAY": "{{ ds }}"}, ())
    with pytest.raises(PipelineError, match=r"there is no script run_all\.sh in"):
        task_parameters("run_all.sh", tmp_path, {}, ())
    (tmp_path / "latin.sh").write_bytes(b"#!/bin/sh\n# gr\xfc\xdfe\nsbatch x.sh\n")
    for script in ("latin.sh", "sbatch latin.sh\n"):
        with pytest.raises(PipelineError, match=r"latin\.sh is no text in UTF-8"):
            task_parameters(script, tmp_path, {}, ())
    (tmp_path / "b.sh").write_text("#!/bin/sh\n#SBATCH --dependency=afterok:7\n")
    with pytest.raises(ShellChainError, match="line 2: its script has a --dependency of its own"):
        task_parameters("A=$(sbatch --parsable a.sh)\nsbatch -d afterok:$A b.sh\n", tmp_path, {}, ())
    with DAG("of_shell", schedule=None), pytest.raises(PipelineError, match="b: unknown kind of dependency expand"):
        SbatchPipeline.from_shell("model", "A=$(sbatch --parsable a.sh)\nsbatch -d expand:$A b.sh\n")
