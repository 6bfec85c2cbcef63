"""Jobs on the sandbox: what they see of the cluster, what becomes of them, and what accounting keeps."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm.notations import ExitCode
from tests.integration.cluster import Cluster, until
from tests.integration.outside import accounted, ssh

pytestmark = pytest.mark.oldest_slurm

SHARED = "/opt/soperator-outputs/shared"
#: The last words of a job that runs until its test has seen it, however long that takes.
HELD = f"exec bash -c '{until('/root/go-$SLURM_JOB_ID')}'"


def output(cluster: Cluster, job: str) -> str:
    """What a job has printed, once accounting has its end."""
    accounted(cluster, job)
    return cluster.run("cat", f"/root/{job}.out")


def variables(printed: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in printed.splitlines())


def test_a_job_sees_the_gpus_that_it_asked_for_and_no_others(cluster: Cluster) -> None:
    job = cluster.sbatch("--gpus=3", wrap="env | grep -E '^(CUDA_|SLURM_GPUS|SLURM_JOB_GPUS)'")
    seen = variables(output(cluster, job))
    assert seen["CUDA_VISIBLE_DEVICES"] == seen["SLURM_JOB_GPUS"] == "0,1,2"
    assert seen["SLURM_GPUS"] == seen["SLURM_GPUS_ON_NODE"] == "3"
    assert "gres/gpu=3" in accounted(cluster, job)["AllocTRES"].split(",")


def test_jobs_side_by_side_share_no_gpu(cluster: Cluster) -> None:
    words = f'echo "$SLURM_JOB_GPUS"; {HELD}'
    jobs = [cluster.sbatch("--nodes=1", "--nodelist=worker-0", "--gpus=4", wrap=words) for _ in range(2)]
    for job in jobs:
        cluster.wait_job(job, "RUNNING")
    outputs = [f"/root/{job}.out" for job in jobs]
    printed = cluster.wait(
        "both have printed", lambda: (said := cluster.try_run("cat", *outputs).stdout).count("\n") == 2 and said
    )
    assert sorted(printed.replace("\n", ",").strip(",").split(",")) == list("01234567")


def test_a_job_without_gpus_sees_none(cluster: Cluster) -> None:
    job = cluster.sbatch(wrap='echo "gpus: ${CUDA_VISIBLE_DEVICES:-none} ${SLURM_JOB_GPUS:-none}"')
    assert output(cluster, job) == "gpus: none none\n"


def test_a_job_that_wants_more_gpus_than_a_node_has_is_refused(cluster: Cluster) -> None:
    said = cluster.try_run("sbatch", "--nodes=1", "--gpus=9", "--wrap=true")
    assert said.returncode == 1
    assert "Requested node configuration is not available" in said.stderr


def test_each_task_runs_under_the_host_name_of_its_node(cluster: Cluster) -> None:
    nodes = ["worker-0", "worker-cpu-0", "worker-cpu-1"]
    said = cluster.run("srun", "--label", f"--nodelist={','.join(nodes)}", "--nodes=3", "hostname")
    assert sorted(said.splitlines()) == [f"{rank}: {node}" for rank, node in enumerate(nodes)]


def test_srun_ends_with_the_exit_code_of_its_command(cluster: Cluster) -> None:
    assert cluster.try_run("srun", "bash", "-c", "exit 42").returncode == 42


def test_all_nodes_share_one_root(cluster: Cluster) -> None:
    path = f"{SHARED}/shared-root"
    try:
        cluster.run("srun", "--nodelist=worker-0", "bash", "-c", f"echo from $(hostname) > {path}")
        assert cluster.run("cat", path) == "from worker-0\n"
        cluster.run("bash", "-c", f"echo from $(hostname) >> {path}")
        said = cluster.run("srun", "--nodelist=worker-cpu-1", "cat", path)
        assert said == "from worker-0\nfrom login-0\n"
        # Soperator's Pods have that root a second time, below /mnt/jail.
        assert cluster.run("cat", f"/mnt/jail{path}", pod="worker-0") == said
    finally:
        cluster.run("rm", "-f", path)


def test_an_array_runs_each_of_its_elements(cluster: Cluster) -> None:
    words = 'echo "$SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT"; test $SLURM_ARRAY_TASK_ID != 4'
    array = cluster.sbatch("--array=0-6:2%2", "--output=/root/%A_%a.out", wrap=words)
    indices = (0, 2, 4, 6)
    ends = {index: accounted(cluster, f"{array}_{index}") for index in indices}
    assert {index: end["State"] for index, end in ends.items()} == {
        index: "FAILED" if index == 4 else "COMPLETED" for index in indices
    }
    assert len({end["JobIDRaw"] for end in ends.values()}) == len(indices)
    for index in indices:
        assert cluster.run("cat", f"/root/{array}_{index}.out") == f"{array} {index} of 4\n"


def test_dependent_jobs_run_in_their_order(cluster: Cluster) -> None:
    path = f"{SHARED}/order"
    try:
        first = cluster.sbatch("--hold", wrap=f"echo first >> {path}")
        second = cluster.sbatch(f"--dependency=afterok:{first}", wrap=f"echo second >> {path}")
        third = cluster.sbatch(f"--dependency=afterany:{second}", wrap=f"echo third >> {path}")
        cluster.run("scontrol", "release", first)
        assert accounted(cluster, third)["State"] == "COMPLETED"
        assert cluster.run("cat", path).split() == ["first", "second", "third"]
    finally:
        cluster.run("rm", "-f", path)


def test_a_job_after_one_that_failed_never_runs(cluster: Cluster) -> None:
    failing = cluster.sbatch("--hold", wrap="false")
    waiting = cluster.sbatch(f"--dependency=afterok:{failing}")
    given_up = cluster.sbatch(f"--dependency=afterok:{failing}", "--kill-on-invalid-dep=yes")
    cluster.run("scontrol", "release", failing)
    assert accounted(cluster, failing)["State"] == "FAILED"
    assert accounted(cluster, given_up)["State"].startswith("CANCELLED")
    cluster.wait(
        "Slurm has seen that the dependency cannot hold",
        lambda: (
            cluster.run("squeue", "--noheader", f"--job={waiting}", "--format=%T %r").split()
            == ["PENDING", "DependencyNeverSatisfied"]
        ),
    )


@pytest.mark.each_slurm
def test_a_requeued_job_starts_again_under_its_id(cluster: Cluster) -> None:
    job = cluster.sbatch("--open-mode=append", wrap='echo "start ${SLURM_RESTART_COUNT:-0}"; ' + HELD)
    out = f"/root/{job}.out"
    cluster.wait("it has started", lambda: cluster.try_run("cat", out).stdout == "start 0\n")
    cluster.run("scontrol", "requeue", job)
    # Slurm holds a requeued job back for two minutes, unless it is told afresh when to begin.
    held_back = ["PENDING", "BeginTime"]
    cluster.wait(
        "it is back in the queue",
        lambda: cluster.run("squeue", "--noheader", f"--job={job}", "--format=%T %r").split() == held_back,
    )
    cluster.start_soon(job)
    cluster.wait("it has started again", lambda: "\nstart 1\n" in cluster.run("cat", out))
    cluster.run("scancel", job)
    assert accounted(cluster, job)["Restarts"] == "1"


@pytest.mark.each_slurm
@pytest.mark.parametrize("partition", ["main", "hidden"])
@pytest.mark.parametrize(
    ("words", "state", "exit_code"),
    [
        ("true", "COMPLETED", "0:0"),
        ("exit 3", "FAILED", "3:0"),
        ("kill -KILL $$", "FAILED", "0:9"),
        ("scancel $SLURM_JOB_ID; sleep 60", "CANCELLED by 0", "0:0"),
    ],
)
def test_accounting_keeps_how_a_job_ended(
    cluster: Cluster, partition: str, words: str, state: str, exit_code: str
) -> None:
    job = cluster.sbatch(f"--partition={partition}", "--job-name=ended", "--gpus=1", wrap=words)
    kept = accounted(cluster, job)
    assert (kept["State"], kept["ExitCode"]) == (state, exit_code)
    assert (kept["JobName"], kept["User"], kept["Partition"]) == ("ended", "root", partition)
    assert kept["NodeList"] == "worker-0"
    assert kept["SubmitLine"].startswith("sbatch --parsable ")
    assert f"--partition={partition} " in kept["SubmitLine"]
    assert kept["SubmitLine"].endswith(f"--wrap={words}")


@pytest.mark.each_slurm
@pytest.mark.parametrize("output", ["/etc/passwd/out", f"/root/{'x' * 256}"], ids=["folder", "name"])
def test_a_job_whose_output_cannot_be_opened_is_not_started(cluster: Cluster, output: str) -> None:
    job = cluster.sbatch(f"--output={output}", "--nodelist=worker-0")
    kept = accounted(cluster, job)
    assert (kept["State"], kept["NodeList"]) == ("FAILED", "worker-0")
    assert ExitCode.parse(kept["ExitCode"]).is_not_started


def test_a_cancelled_pending_job_is_accounted_without_a_node(cluster: Cluster) -> None:
    job = cluster.sbatch("--hold")
    cluster.run("scancel", job)
    kept = accounted(cluster, job)
    assert (kept["State"], kept["NodeList"]) == ("CANCELLED by 0", "None assigned")


def test_the_hidden_partition_is_for_those_who_know_of_it(cluster: Cluster) -> None:
    listed = ssh(cluster, "sinfo --noheader --format=%P", user="alice").stdout.split()
    known = ssh(cluster, "sinfo --all --noheader --format=%P", user="alice").stdout.split()
    assert set(listed) == {"main*"}
    assert set(known) == {"main*", "hidden"}


def test_an_ordinary_user_runs_jobs_in_her_own_name(cluster: Cluster) -> None:
    submitted = ssh(cluster, "sbatch --parsable --gpus=1 --wrap='whoami; pwd; touch of-the-job'", user="alice")
    job = submitted.stdout.strip()
    kept = accounted(cluster, job)
    assert (kept["User"], kept["Account"], kept["State"]) == ("alice", "research", "COMPLETED")
    assert ssh(cluster, f"cat slurm-{job}.out", user="alice").stdout == "alice\n/home/alice\n"
    assert ssh(cluster, "stat --format=%U of-the-job", user="alice").stdout == "alice\n"


@pytest.mark.parametrize("direction", ["up", "down"])
def test_an_ordinary_user_may_not_power_nodes(cluster: Cluster, direction: str) -> None:
    node = "worker-0" if direction == "down" else "worker-1"
    before = cluster.node(node).state
    said = ssh(cluster, f"scontrol power {direction} {node}", user="alice")
    assert said.returncode == 1
    assert "Invalid user id" in said.stderr
    assert cluster.node(node).state == before


def test_an_ordinary_user_may_not_touch_jobs_of_others(cluster: Cluster) -> None:
    job = cluster.sbatch("--hold")
    said = ssh(cluster, f"scancel {job}", user="alice")
    assert "Access/permission denied" in said.stderr
    assert cluster.job_state(job) == "PENDING"
