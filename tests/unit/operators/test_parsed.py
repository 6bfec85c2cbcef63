"""Mistakes in a DAG file that no template hides: it is refused when it is parsed, with the nearest name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, XComArg, task
from jinja2 import Undefined

from airflow_provider_soperator.capacity.order import Timeouts
from airflow_provider_soperator.decorators.sbatch import sbatch_task
from airflow_provider_soperator.operators.backup import BackupJailOperator
from airflow_provider_soperator.operators.nodes import DrainNodesOperator, PowerUpNodesOperator, ReplaceNodesOperator
from airflow_provider_soperator.operators.pipeline import SbatchPipeline, afterany
from airflow_provider_soperator.operators.provisioning import ProvisionClusterOperator
from airflow_provider_soperator.operators.reservations import CreateReservationOperator
from airflow_provider_soperator.operators.sbatch import SbatchOperator, retry
from airflow_provider_soperator.operators.stats import SlurmStatsOperator
from airflow_provider_soperator.provisioning.spec import Recipe
from airflow_provider_soperator.sensors.capacity import CapacityBlockSensor
from airflow_provider_soperator.sensors.health import NodeHealthSensor
from airflow_provider_soperator.sensors.jobs import SlurmJobSensor, SlurmQueueSensor
from airflow_provider_soperator.sensors.nodes import NodeStateSensor
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.queue_filter import QueueFilter
from airflow_provider_soperator.triggers.events import SlurmJobFinishedTrigger
from tests.unit.operators.dags import job, refused
from tests.unit.provisioning.clusters import cluster

RECIPE: dict[str, Any] = {"task_id": "a", "spec": cluster(), "source": Recipe("/opt/recipe")}


@pytest.mark.parametrize(
    ("unknown", "says"),
    [
        ({"gpu_per_node": 8}, "SbatchOperator fit has no parameter 'gpu_per_node': did you mean 'gpus_per_node'?"),
        ({"job_name": "a"}, "did you mean 'name'?"),
        ({"time": "1:00:00"}, "did you mean 'time_limit'?"),
        ({"cpus": 8}, "did you mean 'cpus_per_task' or 'cpus_per_gpu'?"),
        ({"jobname": "a", "tasks_per_node": 2}, "'jobname': did you mean 'name'?; 'tasks_per_node': did you mean 'nta"),
        ({"wrap": "hostname"}, "--wrap cannot be used: use command"),
        ({"propagate": "NONE"}, "pass --propagate in sbatch_args"),
        ({"stream_log": True}, "did you mean 'stream_logs'?"),
        (
            {"conn_id": "a", "walltime": 1},
            "'conn_id': did you mean 'slurm_conn_id'?; 'walltime': did you mean 'time_limit",
        ),
        ({"environment": {}}, "did you mean 'env'?"),
        ({"retry": 3}, "did you mean 'retries'?"),
        ({"qwerty": 3}, "'qwerty': see its docstring"),
    ],
)
def test_a_parameter_that_there_is_not(unknown: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError) as error:
        SbatchOperator(task_id="fit", command="true", **unknown)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("operator", "needed"),
    [(DrainNodesOperator, {"nodes": "a", "reason": "b"}), (SlurmJobSensor, {"job_id": "7"}), (SlurmStatsOperator, {})],
)
def test_a_parameter_that_another_operator_has_not(operator: Any, needed: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="has no parameter 'slurm_con_id': did you mean 'slurm_conn_id'"):
        operator(task_id="a", slurm_con_id="x", **needed)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: DrainNodesOperator(task_id="a", nodes="a", reason="b", timeout="2h"), "timeout"),
        (lambda: ReplaceNodesOperator(task_id="a", nodes="a", grace=300), "grace"),
        (lambda: BackupJailOperator(task_id="a", max_backup_age="4h"), "max_backup_age"),
        (lambda: ProvisionClusterOperator(**RECIPE, ready_timeout="2h"), "ready_timeout"),
        (lambda: CreateReservationOperator(task_id="a", name="b", count=1, users=["c"], duration="2h"), "duration"),
        (lambda: CapacityBlockSensor(task_id="a", block="b", stable_for="2h"), "stable_for"),
        (lambda: SlurmQueueSensor(task_id="a", max_jobs=0, min_duration="5m"), "min_duration"),
        (lambda: SlurmJobFinishedTrigger(look_back="1h"), "look_back"),
        (lambda: Timeouts(ready=600), "ready"),
    ],
)
def test_a_duration_that_is_none(make: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a timedelta"):
        make()


@pytest.mark.parametrize(
    ("make", "nodes"),
    [
        (lambda: CreateReservationOperator(task_id="a", name="b", count=2, users=["c"]), 2),
        (lambda: CreateReservationOperator(task_id="a", name="b", count=2, users=["c"]), "2"),
        (lambda: PowerUpNodesOperator(task_id="a", count=3), 2),
        (lambda: PowerUpNodesOperator(task_id="a", count=3), "2"),
        (lambda: NodeHealthSensor(task_id="a"), 2),
        (lambda: NodeStateSensor(task_id="a", target_state="usable", partition="main"), 2),
    ],
)
def test_a_number_of_nodes_that_default_args_say_for_jobs(make: Callable[[], object], nodes: int | str) -> None:
    with (
        DAG("d", schedule=None, default_args={"nodes": nodes}),
        pytest.raises(ValueError, match="nodes=None keeps those of default_args out"),
    ):
        make()


@pytest.mark.parametrize("interval", ["10s", 0, None])
@pytest.mark.parametrize(
    ("operator", "needed"), [(SbatchOperator, {"command": "true"}), (DrainNodesOperator, {"nodes": "a", "reason": "b"})]
)
def test_an_interval_that_is_none(operator: Any, needed: dict[str, str], interval: Any) -> None:
    with pytest.raises(ValueError, match=f"poll_interval must be a number of seconds > 0, got {interval!r}"):
        operator(task_id="a", poll_interval=interval, **needed)


def test_a_state_that_no_job_is_in() -> None:
    with pytest.raises(ValueError, match="Slurm has no runing: did you mean 'RUNNING'"):
        SlurmJobSensor(task_id="a", job_id="7", target_states=["runing"])


def test_a_script_may_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "fit.sbatch").write_text("#!/bin/sh\ntrue\n")
    parsed(script=Path("fit.sbatch"), folder=tmp_path)


def test_a_script_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "latin.sh").write_bytes(b"#!/bin/sh\n# gr\xfc\xdfe\n")
    with pytest.raises(InvalidJob, match=r"script='latin\.sh': it is no text in UTF-8 \(.*\): save it as such"):
        parsed(script="latin.sh", folder=tmp_path)


def test_a_state_may_be_one_text() -> None:
    assert SlurmJobSensor(task_id="a", job_id="7", target_states="RUNNING").target_states == ("RUNNING",)


def parsed(*, folder: Path | None = None, **options: Any) -> None:
    """As Airflow's DAG processor does it."""
    with DAG("d", schedule=None, template_searchpath=str(folder or "/")) as dag:
        SbatchOperator(task_id="fit", **options)
    dag.resolve_template_files()


MEMORY_LINE = "#!/bin/sh\n#SBATCH --mem-per-cpu=4G\n"
ARRAY_LINE = "#!/bin/sh\n#SBATCH --array=0-3\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"time_limit": "two hours"}, "fit: time_limit: 'two hours' is not a duration"),
        ({"script": "#!/bin/sh\n"}, "fit: script and command are set: set exactly one of script, command"),
        ({"nodes": "{{ 1 }}", "mem": "much"}, "mem: 'much' is not an amount of memory"),
        ({"env": {"N": True}}, "env: the value of N must be a string, got bool"),
        ({"env": ["N=1"]}, "env: must be variables by their names, got list"),
        ({"array": "0-3", "result": "file:out.json"}, "would write the same file, out.json: name it with %a"),
        ({"array": [1, 2], "result": "json", "output": "fit.out"}, "the same file, fit.out: put %a into output"),
        # Patterns that all elements have in common.
        ({"array": "0-3", "result": "json", "output": "%x-%A.%u"}, "would write the same file, %x-%A.%u: put %a"),
        ({"array": "0-3", "result": "file:%%a.json"}, "would write the same file, %%a.json: name it with %a"),
        # In the script's own lines, and in further words.
        (
            {"command": None, "script": ARRAY_LINE, "result": "file:out.json"},
            "would write the same file, out.json: name",
        ),
        (
            {"command": None, "script": f"{ARRAY_LINE}#SBATCH -o fit.out\n", "result": "json"},
            "would write the same file, fit.out: put %a into output",
        ),
        ({"sbatch_args": ["--array=1,2"], "result": "file:out.json"}, "write the same file, out.json: name it with"),
        (
            {"command": None, "script": MEMORY_LINE, "on_finish": {"OUT_OF_MEMORY": retry(mem="64G")}},
            "fit: on_finish: retry(...): mem: cannot be combined with mem_per_cpu on line 2 of the script",
        ),
        (
            {"ntasks_per_gpu": 2, "on_finish": {1: "retry", "TIMEOUT": retry(ntasks_per_node=4, partition="long")}},
            "fit: on_finish: retry(...): ntasks_per_gpu and ntasks_per_node: Slurm takes only one of them",
        ),
        ({"het": [{"gpu_per_node": 1}]}, "gpu_per_node: no such field; did you mean 'gpus_per_node'?"),
        ({"het": {"nodes": 1}}, "het: must be a list of components, got one"),
        ({"sbatch_args": ["--wait"]}, "sbatch_args: --wait cannot be used"),
        ({"command": ["echo", None]}, "command: None must be a text"),
        ({"command": None}, "nothing to run"),
        (
            {"command": None, "script": "prepare.sbatch"},
            "script='prepare.sbatch': there is no such file beside the DAG (",
        ),
        (
            {"command": None, "script": "prepare.py"},
            "script='prepare.py': a script's text begins with #!, its file ends",
        ),
        ({"command": None, "script": "/root/run"}, "for a path on the cluster use remote_script"),
        ({"command": "echo ${#A[@]}"}, "fit: command: ${# begins a comment of Jinja: write {% raw %}"),
        ({"command": ["sh", "-c", "echo ${#A[@]} {{ ds }} ${B%#}"]}, "fit: command: ${# begins a comment of Jinja"),
        ({"env": {"A": "${#B}"}}, "fit: env: ${# begins a comment of Jinja"),
        # Jinja would render this one, without what is between.
        ({"command": None, "script": "#!/bin/bash\necho ${#A} {{ ds }} ${B%#}\n"}, "fit: script: ${# begins a comment"),
    ],
)
def test_a_value_that_is_no_template(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJob) as error:
        parsed(**{"command": "true", **options})
    assert says in str(error.value)


def test_a_length_of_a_shell_variable_that_jinja_leaves_alone() -> None:
    parsed(script="#!/bin/bash\n{% raw %}echo ${#A[@]}{% endraw %} {{ ds }}\n")
    parsed(command="echo {{ '${#A[@]}' }}")


def test_one_text_is_no_list_of_words() -> None:
    with pytest.raises(ValueError, match="sbatch_args must be a list of words, got '--bbf=/x'"):
        parsed(command="true", sbatch_args="--bbf=/x")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"array": "0-3"}, "fit: array: all its elements would make the same call; map the task instead (expand)"),
        ({"ranks": 0}, "fit: ranks: "),
        ({"ranks": "many"}, "fit: ranks: "),
        ({"python": "~/envs/torch/bin/python"}, "fit: python: '~/envs/torch/bin/python' is for a shell to understand"),
        ({"venv": Path("$HOME/envs/torch")}, "fit: venv: '$HOME/envs/torch' is for a shell to understand: write the"),
        ({"venv_cache_path": "~/venvs"}, "fit: venv_cache_path: '~/venvs' is for a shell to understand"),
        ({"requirements": "none.txt"}, "fit: requirements='none.txt' must be a list, or a file beside the DAG"),
    ],
)
def test_what_no_function_can_have(options: dict[str, Any], says: str) -> None:
    with DAG("d", schedule=None) as dag:
        sbatch_task(lambda: 1, task_id="fit", **options)()
    with pytest.raises(InvalidJob) as error:
        dag.resolve_template_files()
    assert says in str(error.value)


@pytest.mark.parametrize("ranks", [8, "{{ params.ranks }}"])
@pytest.mark.parametrize(
    "options",
    [{"gpus_per_task": 1}, {"gpus_per_node": 8, "on_finish": {1: retry(gpus_per_node=None, gpus_per_task=1)}}],
)
def test_ranks_are_the_tasks_of_the_job(ranks: Any, options: dict[str, Any]) -> None:
    with DAG("d", schedule=None) as dag:
        sbatch_task(lambda: 1, task_id="fit", ranks=ranks, **options)()
    dag.resolve_template_files()


@pytest.mark.parametrize("own", [{"script": "#!/bin/sh\n"}, {"command": "true"}, {"args": ("a",)}])
def test_a_function_is_all_that_its_job_runs(own: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(own))} is for SbatchOperator: this task runs its function"):
        sbatch_task(lambda: 1, task_id="fit", **own)()


@pytest.mark.parametrize("files", ["out.json", ["out.json"]])
def test_files_to_copy_have_two_paths(files: Any) -> None:
    with pytest.raises(ValueError, match=r"download must say from where to where, such as .* got .*out\.json"):
        parsed(command="true", download=files)


@pytest.mark.parametrize(
    "options",
    [{"download": {"~/out/m.json": "got"}}, {"upload": {"a": "$SCRATCH/a"}}, {"upload": [["a", "runs/${RUN}/a.sh"]]}],
)
def test_a_path_on_the_cluster_that_only_a_shell_would_understand_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"load: '.*' is for a shell to understand: write the whole path"):
        parsed(command="true", **options)


@pytest.mark.parametrize("files", [{"a": "b"}, [("a", "b")], (["a", "b"],), {"~/$A": "a~$1"}, {"a": "${{ 'A' }}"}])
def test_pairs_of_paths_are_written_as_one_likes(files: Any) -> None:
    parsed(command="true", upload=files)


@pytest.mark.parametrize("result", ["{{ params.result }}", XComArg(EmptyOperator(task_id="choose"))])
def test_a_result_that_is_not_known_yet_is_not_judged(result: Any) -> None:
    parsed(command="true", array="0-3", output="fit.out", result=result)


def test_a_file_of_requirements_elsewhere_is_read_where_the_task_runs() -> None:
    with DAG("d", schedule=None) as dag:
        sbatch_task(lambda: 1, task_id="fit", requirements="/image/requirements.txt")()
    dag.resolve_template_files()


def test_conditions_of_jobs_have_names() -> None:
    with pytest.raises(ValueError, match="job_filter: unknown condition queue; known are states, partition, "):
        SlurmQueueSensor(task_id="a", max_jobs=0, job_filter={"queue": "main"})
    with pytest.raises(ValueError, match="job_filter: Slurm has no PENDNG: did you mean 'PENDING'"):
        SlurmQueueSensor(task_id="a", max_jobs=0, job_filter={"states": ["PENDNG", "COMPLETING"]})
    SlurmQueueSensor(task_id="a", max_jobs=0, job_filter={"states": "{{ params.states | join(',') }}"})
    # Abbreviations are squeue's, and so are the states of a newer Slurm.
    assert QueueFilter.of({"states": "PD, all,LATER_STATE"}).states == ("PD", "all", "LATER_STATE")


def test_a_time_may_be_seconds() -> None:
    with DAG("d", schedule=None):
        task = SlurmQueueSensor(
            task_id="a", max_jobs=0, job_filter={"states": "PENDING", "waited": 60}, min_duration=5, deferrable=True
        )
    assert task.min_duration == timedelta(seconds=5)
    assert QueueFilter.of(task.job_filter) == QueueFilter(states=("PENDING",), waited=timedelta(minutes=1))


@pytest.mark.parametrize(
    "options",
    [
        {"array": "{{ params.array }}", "result": "file:out.json"},
        {"array": "7", "result": "file:out.json"},
        {"array": "0-3", "result": "file:out-%a.json", "output": "fit.out"},
        {"command": None, "script": ARRAY_LINE, "array": "{{ params.array }}", "result": "file:out.json"},
        {"command": None, "script": ARRAY_LINE, "array": "7", "result": "file:out.json"},
        {"command": None, "script": ARRAY_LINE, "sbatch_args": ["--array={{ 7 }}"], "result": "file:out.json"},
        {"command": None, "script": f"{ARRAY_LINE}#SBATCH -o a\n", "output": "{{ '%a' }}", "result": "json"},
        {"command": None, "script": ARRAY_LINE, "result": "json"},
        {"time_limit": "{{ params.hours }}:00:00", "array_limit": 2, "array": "{{ params.array }}"},
        {"command": None, "script": "#!/bin/sh\n#SBATCH --mem={{ params.mem }}\n"},
        {"command": ["echo", "{{ params.word }}"]},
        {"gpu_type": "h100", "gpus": "{{ params.gpus }}"},
        {"env": {"N": "{{ 1 }}"}, "gpus_per_task": 1, "ntasks": "{{ 2 }}"},
        {"command": "sh /root/run.sh", "output": "/root/run.sh"},
        {"mem_per_cpu": "4G", "on_finish": {"OUT_OF_MEMORY": retry(mem="64G")}},
        {"command": None, "script": f"{MEMORY_LINE}{{{{ ds }}}}", "on_finish": {"OUT_OF_MEMORY": retry(mem="64G")}},
    ],
)
def test_a_template_is_judged_when_it_is_rendered(options: dict[str, Any]) -> None:
    parsed(**{"command": "true", **options})


def test_so_is_the_result_of_another_task() -> None:
    with DAG("d", schedule=None) as dag:
        nodes = task(lambda: 1, task_id="one")()
        SbatchOperator(task_id="a", command="true", nodes=nodes)
        SbatchOperator(task_id="b", command=["echo", nodes])
        SbatchOperator(task_id="words", command="true", sbatch_args=nodes)
        SbatchOperator.partial(task_id="c").expand(command=["a", "b"])
    dag.resolve_template_files()


def test_the_file_of_a_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "prepare.sbatch").write_text("#!/bin/sh\n#SBATCH --mem=8G --mem-per-cpu=1G\n")
    parsed(folder=tmp_path, script="prepare.sbatch")
    with pytest.raises(InvalidJob, match="mem_per_gpu: cannot be combined with mem on line 2 of the script"):
        parsed(folder=tmp_path, script="prepare.sbatch", mem_per_gpu="1G")


@pytest.mark.parametrize("comments", [{}, {"comment_start_string": "{##", "comment_end_string": "##}"}])
def test_a_text_that_ends_like_the_name_of_a_script_is_none(comments: dict[str, str]) -> None:
    with DAG("d", schedule=None, jinja_environment_kwargs=comments) as dag:
        text: Any = SbatchOperator(task_id="text", script="#!/bin/sh\n{{ 'bash' }} /root/run.sh")
        path: Any = SbatchOperator(
            task_id="path", remote_script="/r/run.sh", args=["a.sh"], upload={"a.sh": "b.sh"}, result="file:c.sh"
        )
    dag.resolve_template_files()
    for one in (text, path):
        one.render_template_fields({})
    assert text.script == "#!/bin/sh\nbash /root/run.sh"
    assert path.job == {"remote_script": "/r/run.sh", "args": ["a.sh"]}
    assert (path.upload, path.result) == ([["a.sh", "b.sh"]], "file:c.sh")


@pytest.mark.parametrize("chain", [lambda a, b: a >> afterany >> b, lambda a, b: [a] >> afterany >> b])
def test_an_edge_without_parentheses(chain: Any) -> None:
    with refused("afterany has no parentheses: write a >> afterany() >> b"), SbatchPipeline("p"):
        chain(job("a"), job("b"))


def test_what_needs_an_airflow_worker_at_the_start_is_named() -> None:
    with DAG("d", schedule=None, user_defined_macros={"f": str}) as dag:
        free = {"command": "true", "start_from_trigger": True}
        one = SbatchOperator(task_id="one", pool="gpus", upload={"a": "b"}, **free)
    dag.resolve_template_files()
    assert one._needs_a_worker_at_the_start() == "upload, pool, macros or filters of the DAG"
    assert not one.start_from_trigger
    with DAG("e", schedule=None) as dag:
        none = SbatchOperator(task_id="none", **free)
    dag.resolve_template_files()
    assert none._needs_a_worker_at_the_start() == ""
    assert none.start_from_trigger


class Gated(SbatchOperator):
    """A user's own class."""

    def execute(self, context: Any) -> Any: ...


class Checked(SbatchOperator):
    """A user's own class."""

    def pre_execute(self, context: Any) -> None: ...


OTHER_WORDS = {"variable_start_string": "[[", "variable_end_string": "]]"}


@pytest.mark.parametrize(
    ("dag", "kind", "options", "named"),
    [
        ({"jinja_environment_kwargs": OTHER_WORDS}, SbatchOperator, {}, "Jinja of the DAG"),
        ({"render_template_as_native_obj": True}, SbatchOperator, {}, "Jinja of the DAG"),
        ({"template_undefined": Undefined}, SbatchOperator, {}, "Jinja of the DAG"),
        ({}, SbatchOperator, {"render_template_as_native_obj": True}, "Jinja of the DAG"),
        ({}, SbatchOperator, {"command": "{% include 'lib.sh' %}"}, "templates"),
        ({}, SbatchOperator, {"command": "{% include params.lib %}"}, "templates"),
        ({}, Gated, {}, "its class"),
        ({}, Checked, {}, "pre_execute"),
    ],
)
def test_the_triggerer_starts_only_what_it_renders_and_begins_as_a_worker(
    dag: dict[str, Any], kind: type[SbatchOperator], options: dict[str, Any], named: str
) -> None:
    with DAG("d", schedule=None, **dag) as made:
        one = kind(task_id="one", start_from_trigger=True, **{"command": "true"} | options)
    made.resolve_template_files()
    assert (one._needs_a_worker_at_the_start(), one.start_from_trigger) == (named, False)


def test_a_plugin_that_listens_keeps_no_dag_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's own example has one, and is loaded by default."""
    from airflow.dag_processing import dagbag

    monkeypatch.setattr(dagbag, "get_listener_manager", lambda: SimpleNamespace(has_listeners=True))
    (tmp_path / "heard.py").write_text(
        "from airflow.sdk import DAG\n"
        "from airflow_provider_soperator.operators.sbatch import SbatchOperator\n"
        "with DAG('heard', schedule=None):\n"
        "    SbatchOperator(task_id='job', command='hostname', deferrable=True)\n"
    )
    bag = dagbag.DagBag(tmp_path)
    assert (list(bag.dags), bag.import_errors) == (["heard"], {})
