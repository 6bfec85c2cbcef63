"""The commands for DAG files: plan, lint and import, without a database and without a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.cli import dags, rehearsal
from airflow_provider_soperator.cli.rehearsal import dags_of
from airflow_provider_soperator.slurm.cluster_records import Association, ClusterConfig, Partition, UserRights
from airflow_provider_soperator.slurm.requests import ListPartitions, ListReservations, ShowConfig, ShowRights, WhoAmI
from tests.unit.cli.calls import called

HEAD = """\
from airflow.sdk import DAG, task
from airflow_provider_soperator.operators.pipeline import SbatchPipeline
from airflow_provider_soperator.operators.sbatch import SbatchOperator
"""
TRAIN = """
with DAG("train", schedule=None, params={"rate": 0.1}):
    first = SbatchOperator(task_id="first", command="hostname {{ params.rate }}", partition="mian")
    wide = SbatchOperator.partial(task_id="wide", account="physics").expand(command=["a", "b"])
    text = "#!/bin/sh\\n#SBATCH --qos=high\\n: {{ ti.xcom_pull('first')['x'].y }}\\n"
    last = SbatchOperator(task_id="last", script=text)
    first >> wide >> last
    with SbatchPipeline("model"):
        prepare = SbatchOperator(task_id="prepare", command="prepare")
        prepare >> SbatchOperator(task_id="fit", script="fit.sbatch")

    @task
    def other(): ...
    SbatchOperator.partial(task_id="over").expand(command=other())
    SbatchOperator(task_id="whole", command="a", env=other())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(HEAD + TRAIN)
    (tmp_path / "fit.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun fit\n")
    return tmp_path


def test_a_plan_has_the_job_of_each_task_as_a_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = called(capsys, "plan", str(folder / "train.py"), "--json", "--conf", '{"rate": 3}').rows
    shells = {tuple(row["tasks"]): row["shell"] for row in rows}
    assert set(shells) == {("first",), ("wide",), ("last",), ("model.prepare", "model.fit"), ("over",), ("whole",)}
    assert "--partition=mian" in shells["first",]
    assert "--wrap='hostname 3'" in shells["first",]
    assert [line.split("=")[0] for line in shells["wide",].splitlines() if "$(sbatch" in line] == ["wide_0_", "wide_1_"]
    # What only a run knows is named.
    assert "--wrap='<result of other>'" in shells["over",]
    assert shells["whole",] == "# not known without a run: a field is the result of another task\n"
    assert ": <result of first>" in shells["last",]
    assert "--dependency=afterok:$model_prepare" in shells["model.prepare", "model.fit"]
    assert "srun fit" in shells["model.prepare", "model.fit"]


def test_a_plan_of_one_task(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(folder / "train.py")
    one = called(capsys, "plan", file, "last")
    assert one.out.startswith("# last, after wide\nlast=$(sbatch ")
    assert called(capsys, "plan", file, "lst").status == "DAG train has no task lst: did you mean 'last'?"
    assert "submits no job itself" in str(called(capsys, "plan", file, "other").status)
    for conf in ("{", "[1]"):
        assert called(capsys, "plan", file, "last", "--conf", conf).status == f"--conf is no object in JSON: {conf}."


def test_the_tasks_of_a_plan_are_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs.py").write_text(f"""{HEAD}
with DAG("runs", schedule=None):
    for name in "ab":
        SbatchOperator(task_id=name, command="touch {{{{ run_id }}}}")
""")
    shells = [row["shell"] for row in called(capsys, "plan", str(tmp_path / "runs.py"), "--json").rows]
    assert len({shell.partition("touch manual__")[2].partition("'")[0] for shell in shells}) == 1


def test_what_only_a_run_knows_hides_no_other_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mapped.py").write_text(f"""{HEAD}
with DAG("mapped", schedule=None):
    one = task(lambda x: {{"X": x}}, task_id="one").expand(x=[1, 2])
    SbatchOperator.partial(task_id="wide", command="a").expand(env=one)
    SbatchOperator(task_id="other", command="b")
""")
    whole = called(capsys, "plan", str(tmp_path / "mapped.py"), "--json")
    shells = {row["tasks"][0]: row["shell"] for row in whole.rows}
    assert shells["wide"] == "# not known without a run: a field is the result of another task\n"
    assert "--wrap=b" in shells["other"]
    assert whole.status == 1
    assert called(capsys, "plan", str(tmp_path / "mapped.py"), "other").status == 0


def test_a_job_that_could_never_be_submitted_is_told_from_one_that_only_a_run_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.py").write_text(f"""{HEAD}
with DAG("wrong", schedule=None, params={{"gpus": "many"}}):
    SbatchOperator(task_id="mistake", command="a", gpus="{{{{ params.gpus }}}}")
    SbatchOperator(task_id="result", command="a", gpus="{{{{ ti.xcom_pull('mistake') }}}}")
""")
    whole = called(capsys, "plan", str(tmp_path / "wrong.py"), "--json")
    shells = {row["tasks"][0]: row["shell"] for row in whole.rows}
    assert shells["mistake"].startswith("# cannot be submitted: gpus: 'many' is not a number of GPUs")
    assert shells["result"].startswith("# not known without a run: gpus: '<result of mistake>' is not a number of GPUs")
    assert whole.status == 1


def test_a_clean_folder_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "upload.py").write_text(f"""{HEAD}
with DAG("upload", schedule=None):
    files = task(lambda: {{"in.csv": "in/"}}, task_id="files")()
    SbatchOperator(task_id="of_a_task", command="a", upload=files)
    SbatchOperator(task_id="of_a_form", command="a", upload="{{{{ params.files }}}}")
    SbatchOperator(task_id="beside", command="a", upload={{"run.sh": "bin/"}})
    SbatchOperator.partial(task_id="mapped", upload={{"run.sh": "bin/"}}).expand(command=["a", "b"])
    SbatchOperator.partial(task_id="file", script="run.sh", array_limit=2).expand(array=["0-3", files], mem=["1G"])
    SbatchOperator.partial(task_id="of_file", array_limit=2).expand_kwargs([{{"script": "run.sh", "array": "0-3"}}])
    SbatchOperator.partial(task_id="of_kwargs", mem="{{{{ params.mem }}}}").expand_kwargs(
        [{{"command": "a", "gpus": "{{{{ params.gpus }}}}"}}, {{"remote_script": "/b", "args": ["c"]}}]
    )
    SbatchOperator.partial(task_id="of_others").expand_kwargs(task(lambda: [], task_id="others")())
    task.sbatch(gpus=1, task_id="function")(lambda name, env, **more: name).partial(env=1).expand(name=[1, 2])
    SbatchOperator.partial(task_id="none", upload={{"run.sh": "bin/"}}).expand(command=[])
    SbatchOperator.partial(task_id="of_results").expand(
        command=files, poll_interval=files, sbatch_args=files, on_finish=files, upload=files, result=files
    )

    class Sized(SbatchOperator):
        def __init__(self, *, size, **options):
            super().__init__(command=f"a {{int(size)}}", **options)

    Sized.partial(task_id="sized").expand(size=[1, 2])
    Sized.partial(task_id="sized_by_results").expand(size=files)
""")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    clean = called(capsys, "lint", str(folder))
    assert (clean.out, clean.err, clean.status) == ("", "20 tasks with jobs checked: 0 problems\n", 0)
    assert called(capsys, "lint", str(folder), "--json").rows == []


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        ("SbatchOperator(task_id='a', command='a', mem='much')", "a: mem: 'much' is not an amount of memory"),
        ("SbatchOperator(task_id='a', script='none.sbatch')", "there is no such file beside the DAG"),
        (
            "SbatchOperator(task_id='a', command='a', upload={'in.csv': 'in/'})",
            "upload='in.csv': there is no such file",
        ),
        (
            "SbatchOperator.partial(task_id='a', command='a').expand(upload=[{'wrong.py': 'in/'}, {'in.csv': 'in/'}])",
            "a: upload='in.csv': there is no such file",
        ),
        ("SbatchOperator.partial(task_id='a', upload=[1]).expand(command=['a'])", "a: Upload must say from where"),
        (
            "SbatchOperator.partial(task_id='a', command='a', gpus='8x').expand(env=[{'A': '1'}])",
            "a: gpus: '8x' is not",
        ),
        ("SbatchOperator.partial(task_id='a', command='a').expand(time_limit=['1h', 'soon'])", "a: time_limit: 'soon'"),
        ("SbatchOperator.partial(task_id='a', command='a').expand_kwargs([{'mem': 'much'}])", "a: mem: 'much' is not"),
        (
            "SbatchOperator.partial(task_id='a', script='none.sh').expand(args=[['1']])",
            "a: script='none.sh': there is no",
        ),
        ("SbatchOperator.partial(task_id='a').expand(script=['none.sh'])", "a: script='none.sh': there is no"),
        ("SbatchOperator.partial(task_id='a').expand(command=['echo ${#A}'])", "a: command: ${# begins a comment of"),
        (
            "SbatchOperator.partial(task_id='a', on_finish={'OOM': 'retry'})"
            ".expand_kwargs(task(lambda: 1, task_id='b')())",
            "a: on_finish: jobs do not end as 'OOM'",
        ),
        (
            "SbatchOperator.partial(task_id='a', poll_interval='1s').expand(command=task(lambda: 1, task_id='b')())",
            "a: poll_interval must be",
        ),
        ("SbatchOperator.partial(task_id='a', mem='1G').expand(array_limit=[2], command=['a'])", "a: array_limit: "),
        ("SbatchOperator.partial(task_id='a', command='a').expand(download_on=['never'])", "a: download_on must be"),
        ("task.sbatch(mem='much', task_id='f')(lambda x: x).expand(x=[1])", "f: mem: 'much' is not"),
        ("task.sbatch(ranks='many', task_id='f')(lambda x, ti: x).expand(x=[1])", "f: ranks: 'many' is not"),
        (
            "task.sbatch(python='~/py', task_id='f')(lambda x: x).expand_kwargs(task(lambda: 1, task_id='b')())",
            "f: python: '~/py' is for",
        ),
        (
            "task.sbatch(gpu_per_node=8)(lambda x: x).expand(x=[1])",
            "5: @task.sbatch (...) has no parameter 'gpu_per_node'",
        ),
        ("SbatchOperator(task_id='a', comand='a')", "line 5: SbatchOperator a has no parameter 'comand': did you mean"),
        ("SbatchOperator(task_id='a', command='a', on_finish={'PREEMTED': 'retry'})", "jobs do not end as 'PREEMTED'"),
        ("1 / 0", "line 5: division by zero"),
    ],
)
def test_a_problem_of_a_file_is_told(
    task: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(f"{HEAD}with DAG('wrong', schedule=None):\n    {task}\n")
    found = called(capsys, "lint", str(file))
    assert problem in found.out
    assert found.out.startswith(f"{file}: ")
    assert found.status == 1


def test_what_the_executor_would_reject_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it was configured.
    monkeypatch.setattr("airflow.dag_processing.dagbag._executor_exists", lambda *_: True)
    task = "task(task_id='a', executor='SlurmExecutor', executor_config={'partitoin': 'main'})(lambda: 0)()"
    (tmp_path / "wrong.py").write_text(f"{HEAD}with DAG('wrong', schedule=None):\n    {task}\n")
    found = called(capsys, "lint", str(tmp_path))
    assert "a: executor_config: partitoin: no such field; did you mean 'partition'?" in found.out
    assert (found.err, found.status) == ("1 tasks with jobs checked: 1 problems\n", 1)
    # As the first of all executors it has the tasks that name none.
    (tmp_path / "wrong.py").write_text((tmp_path / "wrong.py").read_text().replace(" executor='SlurmExecutor',", ""))
    assert called(capsys, "lint", str(tmp_path)).status == 0
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "SlurmExecutor:airflow_provider_soperator.executors.SlurmExecutor")
    assert called(capsys, "lint", str(tmp_path)).status == 1


class Client:
    """A cluster with one partition, and one account."""

    def __init__(self, enforced: str = "associations,qos") -> None:
        self.config = ClusterConfig(version="25.11.3", settings={"AccountingStorageEnforce": enforced})

    async def ask(self, request: Any) -> Any:
        return {
            ListPartitions: (Partition(name="main"),),
            ListReservations: (),
            WhoAmI: "ann",
            ShowConfig: self.config,
            ShowRights: UserRights(user="ann", associations=(Association("chemistry", "", ("normal",)),)),
        }[type(request)]

    @asynccontextmanager
    async def async_client(self) -> AsyncIterator[Client]:
        yield self


def test_names_are_looked_up_on_the_cluster(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dags.SlurmHook, "async_client", lambda hook: Client().async_client())
    found = called(capsys, "lint", str(folder), "--conn-id", "soperator_default", "--json")
    assert {(row["task"], row["problem"].partition(":")[0]) for row in found.rows} == {
        ("first", "partition='mian'"), ("wide", "account='physics'"), ("last", "qos='high'"),
    }  # fmt: skip
    assert "did you mean 'main'?" in found.out
    assert {row["problem"].partition(": ")[2].partition(" has none")[0] for row in found.rows} == {
        "the cluster",
        "the user ann",
    }
    assert "7 tasks with jobs checked, 7 of them against soperator_default" in found.err
    # Tasks of another connection are not for this cluster.
    assert called(capsys, "lint", str(folder), "--conn-id", "other", "--json").rows == []
    # A job has any QOS there.
    monkeypatch.setattr(dags.SlurmHook, "async_client", lambda hook: Client("associations").async_client())
    found = called(capsys, "lint", str(folder), "--conn-id", "soperator_default", "--json")
    assert {row["task"] for row in found.rows} == {"first", "wide"}


def test_an_imported_chain_can_be_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run_all.sh").write_text(
        'a=$(sbatch --parsable -N2 fit.sbatch "$1")\nsbatch --dependency=afterok:$a /jail/report.sh\n'
    )
    made = called(capsys, "import", str(folder / "run_all.sh"), "--variable", "1=big")
    (folder / "run_all.py").write_text(made.out)
    assert "'script': 'fit.sbatch'" in made.out
    where = "Keep it beside fit.sbatch. On the cluster there have to be /jail/report.sh."
    assert made.out.startswith(f'"""Made from run_all.sh. {where}"""\n')
    assert called(capsys, "lint", str(folder / "run_all.py")).status == 0
    [row] = called(capsys, "plan", str(folder / "run_all.py"), "--json").rows
    assert "srun fit" in row["shell"]
    assert "--dependency=afterok:$" in row["shell"]


def test_a_command_without_effect_on_jobs_is_passed_over_as_the_refusal_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run_all.sh").write_text("module load cuda\nsbatch --wrap=true\n")
    refused = called(capsys, "import", str(folder / "run_all.sh"))
    assert "--ignore module on the command line" in str(refused.status)
    made = called(capsys, "import", str(folder / "run_all.sh"), "--ignore", "module")
    assert made.out.startswith('"""Made from run_all.sh."""\n')


def test_a_script_of_a_job_is_a_dag_of_one_task(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = called(capsys, "import", str(folder / "fit.sbatch"), "--conn-id", "other")
    assert "SbatchOperator(task_id='fit', script='fit.sbatch', slurm_conn_id='other')" in made.out
    (folder / "wrong.sh").write_text("curl x\nsbatch a.sh\n")
    assert "Line 1: 'curl' is not understood" in str(called(capsys, "import", str(folder / "wrong.sh")).status)
    assert "there is no script" in str(called(capsys, "import", str(folder / "none.sh")).status).lower()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.slurm", "#!/bin/bash\n#SBATCH --nodes=2\nsrun it's\n"),
        ("job", "#!/bin/bash\n#SBATCH --nodes=2\nbash other.sh"),
        ("job.sbatch", "#!/bin/bash\n#SBATCH --nodes=2\ndocker inspect --format '{{.State}}' x; : ${#a[@]}\n"),
    ],
)
def test_a_script_that_airflow_would_not_read_as_it_stands_is_in_the_dag(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    made = called(capsys, "import", str(tmp_path / name))
    (tmp_path / name).unlink()
    (tmp_path / "job.py").write_text(made.out)
    [dag] = dags_of([str(tmp_path / "job.py")])
    task: Any = dag.get_task("job")
    task.render_template_fields({})
    assert task.script.splitlines() == text.splitlines()
    assert made.out.startswith(f'"""Made from {name}."""\n')


def test_a_dag_that_airflow_would_refuse_is_not_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.sh").write_text("#!/bin/bash\nhostname\n")
    said = called(capsys, "import", str(folder / "job.sh"), "--dag-id", "my job")
    assert (said.out, said.status) == ("", "--dag-id is 'my job': write letters, digits, _, . and -.")


def test_of_several_files_one_may_have_no_dag(folder: Path) -> None:
    (folder / "helpers.py").write_text("# For dags\n")
    files = sorted(map(str, folder.glob("*.py")))
    assert [dag.dag_id for dag in dags_of(files)] == ["train"]


@pytest.fixture
def of_airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Airflow's own DAGs, of which two files cannot be read."""
    (tmp_path / "fit.py").write_text("from airflow.sdk import dag\n@dag(schedul=None)\ndef fit(): ...\nfit()\n")
    (tmp_path / "other.py").write_text("from airflow.sdk import DAG\n1 / 0\n")
    bundle = SimpleNamespace(path=tmp_path, name="dags-folder", initialize=lambda: None)
    monkeypatch.setattr(rehearsal, "_bundles", lambda: [bundle])
    return tmp_path


def test_a_dag_whose_file_cannot_be_read_is_not_said_to_be_missing_without_the_reason(
    of_airflow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = str(called(capsys, "plan", "fit").status)
    assert said.startswith(f"There is no DAG fit: {of_airflow}/fit.py cannot be read: ")
    assert "schedul" in said
    assert "division by zero" not in said


def test_errors_of_all_files_are_told_if_none_names_the_dag(
    of_airflow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = str(called(capsys, "plan", "lost").status)
    assert said.startswith("There is no DAG lost: name its id, or its file; ")
    assert f"{of_airflow}/other.py cannot be read: division by zero" in said
    assert f"{of_airflow}/fit.py cannot be read: " in said
