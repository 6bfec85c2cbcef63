"""What people write into a DAG, and what the job, its log and its task's result look like then."""

from __future__ import annotations

import re

import pytest

from tests.airflow.jobs import HELD
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

FILES = {
    "train.sh": "#!/bin/bash\n#SBATCH --job-name=own-name --output=/root/own-%j.out\n"
    "echo run {{ run_id }}\nbash /root/inner.sh"
}
TASKS = f'''
shown = "squeue --jobs $SLURM_JOB_ID --noheader --Format=Comment:20,TimeLimit:20"
SbatchOperator(task_id="text", script="""#!/bin/bash
echo run {{{{ run_id }}}} of {{{{ ti.task_id }}}}
echo to stderr >&2
bash /root/inner.sh""")
SbatchOperator(task_id="file", script="train.sh")
SbatchOperator(task_id="remote", remote_script="/root/remote.sh", args=["a b", "{{{{ ds_nodash | default('x') }}}}"])
SbatchOperator(task_id="command", command=["printf", "%s|", "it's", "$HOME"])
SbatchOperator(
    task_id="env", command='echo "$ODD"; bash /root/inner.sh', env={{"ODD": "a 'b' {{{{ 1 + 1 }}}}", "END": "x.sh"}}
)
SbatchOperator(task_id="options", command=shown, comment="mine")
SbatchOperator(task_id="words", command=shown, sbatch_args=["--comment=words"])
elements = "printf 'element %s\\n' $SLURM_ARRAY_TASK_ID begun; exit $SLURM_ARRAY_TASK_ID"
SbatchOperator(task_id="array", command=elements, array="0-2")
SbatchOperator(task_id="apart", command="echo out; echo err >&2", error="/root/apart-%j.err")
SbatchOperator(task_id="long", command="seq 400000")
SbatchOperator(task_id="quiet", command="echo hidden", stream_logs=False)

@task
def sizes():
    return 1

SbatchOperator(task_id="upstream", command="echo $SLURM_JOB_NUM_NODES nodes", nodes=sizes())
SbatchOperator.partial(task_id="mapped", name="mapped").expand(command=[["echo", "a"], ["echo", "b.sh"]])
SbatchOperator.partial(task_id="mapped_later", command="echo $WHAT").expand(env=[{{"WHAT": "x"}}, {{"WHAT": "y"}}])
SbatchOperator.partial(task_id="seeds", script="#!/bin/bash\\necho seed $1\\nexit $2", deferrable=True).expand(
    args=[[str(seed), str(int(seed == 1))] for seed in range(4)]
)
SbatchOperator(task_id="live", script="{HELD}", time_limit=60)
SbatchOperator(task_id="live_deferred", script="{HELD}", time_limit=60, deferrable=True)
'''


def start(stack: Stack, slurm: Cluster) -> Run:
    """All shapes in one run, which is over but for the jobs that are to run while others look."""
    slurm.run("sh", "-c", "echo 'echo from within' >/root/inner.sh")
    own = "#SBATCH --job-name=there --error=/root/there-%%j.err\\necho late >&2"
    slurm.run("sh", "-c", f'printf \'#!/bin/bash\\n{own}\\nprintf "%%s|" "$@"\\n\' >/root/remote.sh')
    # Airflow's own defaults apply to the options of a job as they do to those of a task.
    options = "default_args={'poll_interval': 1, 'time_limit': 5}"
    return stack.add_dag("shapes", TASKS, files=FILES, dag_options=options).trigger()


def lines(run: Run, task_id: str, index: int = -1) -> list[str]:
    run.wait(task_id, "success", index=index)
    return run.wait_log(task_id, "is COMPLETED", index).splitlines()


def test_a_script_is_a_template(run: Run) -> None:
    said = lines(run, "text")
    assert f"run {run.run_id} of text" in said
    assert "to stderr" in said
    # Its last line looks like the name of a file.
    assert "from within" in said


def test_a_file_beside_the_dag_is_a_template_and_keeps_what_it_says(run: Run) -> None:
    said = lines(run, "file")
    assert {f"run {run.run_id}", "from within"} <= set(said)
    result = run.xcom("file")
    assert result["name"].startswith("own-name.af-")
    assert result["output"] == f"/root/own-{result['job_id']}.out"


def test_a_script_on_the_cluster_is_no_template_and_keeps_what_it_says(run: Run) -> None:
    said = lines(run, "remote")
    assert any(line.startswith("a b|") for line in said)
    assert "stderr: late" in said
    assert run.xcom("remote")["name"].startswith("there.af-")


def test_a_command_is_words_or_a_line(run: Run) -> None:
    assert "it's|$HOME|" in lines(run, "command")
    assert {"a 'b' 2", "from within"} <= set(lines(run, "env"))


def test_options_come_from_the_task_and_its_defaults(run: Run) -> None:
    assert any(line.split() == ["mine", "5:00"] for line in lines(run, "options"))
    assert any(line.split() == ["words", "5:00"] for line in lines(run, "words"))


def test_the_name_and_the_output_tell_dag_task_and_run(run: Run) -> None:
    lines(run, "command")
    result = run.xcom("command")
    assert result["name"].startswith(f"command.shapes.{run.run_id}.af-")
    assert result["output"].startswith("/root/airflow/shapes/manual__")
    assert result["state"] == "COMPLETED"
    assert result["exit_code"] == "0:0"
    assert result["nodes"]
    assert result["elapsed"] >= 0


def test_an_array_has_a_result_and_a_group_for_each_element(run: Run) -> None:
    task = run.wait("array", "failed")
    assert task["try_number"] == 1
    log = run.wait_log("array", "2 of its 3 parts: 2 FAILED")
    for element in range(3):
        assert re.search(rf"_{element} is \w+ .*: element begun\nelement {element}\nelement begun\n", log)
        assert log.count(f"\nelement {element}\n") == 1
    assert "with exit code 1" in log
    assert "The end of /root/airflow/shapes/manual__" in log


def test_stderr_is_told_apart_where_it_is_apart(run: Run) -> None:
    assert {"out", "stderr: err"} <= set(lines(run, "apart"))


def test_of_too_much_output_the_rest_is_told_of(run: Run) -> None:
    said = "\n".join(lines(run, "long"))
    assert "\n1\n2\n3\n" in said
    path = run.xcom("long")["output"]
    assert f"(Not shown of {path}: " in said
    assert "hidden" not in lines(run, "quiet")


def test_an_option_comes_from_an_upstream_task(run: Run) -> None:
    assert "1 nodes" in lines(run, "upstream")


def test_a_mapped_task_has_a_job_for_each_index(run: Run) -> None:
    assert "a" in lines(run, "mapped", 0)
    assert "b.sh" in lines(run, "mapped", 1)
    assert "y" in lines(run, "mapped_later", 1)
    names = {run.xcom("mapped_later", index)["name"] for index in (0, 1)}
    assert len(names) == 2
    assert f"mapped_later.1.shapes.{run.run_id}" in " ".join(names)


def test_mapped_tasks_whose_jobs_may_go_as_an_array_have_each_its_own_end(run: Run) -> None:
    """How many go together is a matter of when they come; tests/integration/test_fan_outs.py has it."""
    for seed in (0, 2, 3):
        assert f"seed {seed}" in lines(run, "seeds", seed)
        result = run.xcom("seeds", seed)
        assert (result["state"], result["parts"]) == ("COMPLETED", [])
        assert result["output"].endswith(f"/seeds.{seed}-{result['raw_id']}.out")
    run.wait("seeds", "failed", index=1)
    assert "seed 1" in run.wait_log("seeds", "with exit code 1", 1).splitlines()


@pytest.mark.parametrize("task_id", ["live", "live_deferred"])
def test_lines_are_in_the_log_while_the_job_runs(run: Run, slurm: Cluster, task_id: str) -> None:
    log = run.wait_log(task_id, "begun")
    assert "let go" not in log
    [job] = [line.split()[1] for line in log.splitlines() if line.endswith(" submitted")]
    slurm.let_go(job)
    run.wait(task_id, "success")
    told = run.wait_log(task_id, f"Job {job} is COMPLETED").splitlines()
    assert told.index("let go") < next(number for number, line in enumerate(told) if "is COMPLETED" in line)
