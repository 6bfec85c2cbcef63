"""The Kubernetes API of a running sandbox shows the real Slurm, and reaches into it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import kubernetes.client
import kubernetes.config
import kubernetes.stream
import kubernetes.watch
import pytest

from tests.integration.cluster import NOT_UP, Cluster
from tests.integration.outside import accounted, fault, kubectl
from tests.patience import PATIENCE

pytestmark = pytest.mark.oldest_slurm


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Any]:
    with kubernetes.config.new_client_from_config(str(cluster.paths.kubeconfig)) as client:
        yield client


def test_the_operators_own_command_shows_the_nodes(cluster: Cluster) -> None:
    said = kubectl(cluster, "exec", "controller-0", "-c", "slurmctld", "--", "sinfo", "--noheader", "--partition=main")
    assert said.returncode == 0, said.stderr
    assert {line.split()[-1] for line in said.stdout.splitlines()} == {"worker-[1-3]", "worker-0,worker-cpu-[0-1]"}


def test_a_job_is_submitted_through_the_login_pod(cluster: Cluster) -> None:
    words = "sbatch --parsable --gpus=1 --output=/root/%j.out --wrap='hostname; echo $CUDA_VISIBLE_DEVICES'"
    said = kubectl(cluster, "exec", "login-0", "-c", "sshd", "--", "chroot", "/mnt/jail", "bash", "-lc", words)
    job = said.stdout.strip()
    assert accounted(cluster, job)["State"] == "COMPLETED"
    assert cluster.run("cat", f"/root/{job}.out") == "worker-0\n0\n"


@pytest.mark.parametrize(
    ("pod", "container"),
    [
        ("worker-0", "slurmd"),
        ("worker-cpu-1", "slurmd"),
        ("login-0", "sshd"),
        ("controller-0", "slurmctld"),
        ("accounting-0", "accounting"),
        ("rest-0", "slurmrestd"),
    ],
)
def test_a_command_runs_under_the_host_name_of_its_pod(cluster: Cluster, pod: str, container: str) -> None:
    assert kubectl(cluster, "exec", pod, "-c", container, "--", "hostname").stdout == f"{pod}\n"


def test_a_pod_sees_its_own_processes_only(cluster: Cluster) -> None:
    said = kubectl(cluster, "exec", "worker-0", "-c", "slurmd", "--", "ps", "-eo", "comm", "--no-headers")
    names = set(said.stdout.split())
    assert {"tini", "slurmd", "ps"} >= {name.removesuffix("-wlm") for name in names}
    assert any(name.startswith("slurmd") for name in names)


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_a_command_ends_with_its_own_exit_code(cluster: Cluster, code: int) -> None:
    said = kubectl(cluster, "exec", "worker-0", "-c", "slurmd", "--", "bash", "-c", f"echo said >&2; exit {code}")
    assert said.returncode == code
    assert said.stderr.startswith("said\n")


def test_a_command_reads_what_it_is_sent(cluster: Cluster) -> None:
    script = "#!/bin/bash\n#SBATCH --output=/root/%j.out\necho from a script\n"
    command = ["sbatch", "--parsable", "--chdir=/root"]
    said = kubectl(cluster, "exec", "-i", "login-0", "-c", "sshd", "--", *command, stdin=script)
    job = said.stdout.strip()
    assert accounted(cluster, job)["State"] == "COMPLETED"
    assert cluster.run("cat", f"/root/{job}.out") == "from a script\n"


def test_a_command_that_does_not_exist_is_named(cluster: Cluster) -> None:
    said = kubectl(cluster, "exec", "worker-0", "-c", "slurmd", "--", "no-such-command")
    assert said.returncode != 0
    assert "no-such-command" in said.stderr


def test_the_log_of_a_daemon_is_the_one_of_its_pod(cluster: Cluster) -> None:
    job = cluster.sbatch("--hold")
    cluster.wait(
        "slurmctld's log tells of the job",
        lambda: f"JobId={job} " in kubectl(cluster, "logs", "controller-0", "-c", "slurmctld", "--tail=20").stdout,
    )
    log = ("logs", "worker-0", "-c", "slurmd")
    assert "slurmd started on" in kubectl(cluster, *log).stdout

    def ends_with_its_last_line() -> bool:
        # Asked for first: of the whole, it is the last line until another one is written.
        last = kubectl(cluster, *log, "--tail=1").stdout
        return last.count("\n") == 1 and kubectl(cluster, *log).stdout.endswith(last)

    cluster.wait("its end is its last line", ends_with_its_last_line)


def test_each_worker_runs_on_the_kubernetes_node_that_slurm_names(cluster: Cluster) -> None:
    shown = kubectl(cluster, "get", "nodes", "--output=jsonpath={.items[*].metadata.name}").stdout.split()
    # Static nodes: what Slurm knows of one that it has powered up depends on its version.
    for name in ("worker-cpu-0", "worker-cpu-1"):
        machine = json.loads(kubectl(cluster, "get", "pod", name, "--output=json").stdout)["spec"]["nodeName"]
        assert machine == cluster.node(name).instance_id
        assert machine in shown
    assert kubectl(cluster, "get", "pod", "worker-2").returncode == 1


def test_a_deleted_worker_pod_comes_back_and_slurm_with_it(cluster: Cluster) -> None:
    before = cluster.pod("worker-cpu-0")
    assert kubectl(cluster, "delete", "pod", "worker-cpu-0").returncode == 0
    after = cluster.wait(
        "there is another Pod of that name",
        lambda: pod if (pod := cluster.pod("worker-cpu-0")) and pod.metadata.uid != before.metadata.uid else None,
    )
    ready = kubectl(cluster, "wait", "--for=condition=Ready", "pod/worker-cpu-0", f"--timeout={PATIENCE}s")
    assert ready.returncode == 0, ready.stderr
    cluster.wait_node("worker-cpu-0", has={"IDLE"}, lacks=NOT_UP)
    assert cluster.run("srun", "--nodelist=worker-cpu-0", "hostname") == "worker-cpu-0\n"
    # Only the Pod was lost: the machine under it is the same.
    assert cluster.machine_of("worker-cpu-0") == before.spec.node_name
    assert after.metadata.owner_references[0].kind == "NodeSet"


def test_the_cluster_is_available_until_a_part_of_it_is_down(cluster: Cluster) -> None:
    available = "--for=jsonpath={.status.phase}=Available"
    assert kubectl(cluster, "wait", available, "slurmcluster/soperator", f"--timeout={PATIENCE}s").returncode == 0
    fault(cluster, "slurmdbd-down")
    gone = "--for=jsonpath={.status.phase}=Not available"
    said = kubectl(cluster, "wait", gone, "slurmcluster/soperator", f"--timeout={PATIENCE}s")
    assert said.returncode == 0, said.stderr
    part = "--for=condition=AccountingAvailable=False"
    assert kubectl(cluster, "wait", part, "slurmcluster/soperator", f"--timeout={PATIENCE}s").returncode == 0
    cluster.sandbox.up()
    assert kubectl(cluster, "wait", available, "slurmcluster/soperator", f"--timeout={PATIENCE}s").returncode == 0


def test_describe_tells_of_a_worker_and_its_events(cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    said = kubectl(cluster, "describe", "pod", "worker-1").stdout
    assert f"{cluster.machine_of('worker-1')}/127.0.0.1" in said
    assert "Successfully assigned soperator/worker-1" in said
    assert "Started container slurmd" in said


def test_a_power_state_written_by_hand_powers_nodes(cluster: Cluster) -> None:
    """What Slurm's programs do through the API, anybody may do, and Slurm follows."""
    patch = json.dumps({"spec": {"activeNodes": [0, 1]}})
    said = kubectl(cluster, "patch", "nodesetpowerstate", "worker", "--type=merge", "--patch", patch)
    assert said.returncode == 0, said.stderr
    assert kubectl(cluster, "wait", "--for=create", "pod/worker-1", f"--timeout={PATIENCE}s").returncode == 0
    assert kubectl(cluster, "wait", "--for=condition=Ready", "pod/worker-1", f"--timeout={PATIENCE}s").returncode == 0
    cluster.wait("the block has two machines out", lambda: cluster.usage() == 2 * cluster.settings.gpus)


# ------------------------------------------------------------------------------- the same, by the Python client


def test_the_python_client_reads_pods_and_nodes(cluster: Cluster, api: Any) -> None:
    core = kubernetes.client.CoreV1Api(api)
    pod = core.read_namespaced_pod("worker-0", "soperator")
    assert pod.metadata.owner_references[0].kind == "NodeSet"
    conditions = {one.type: one.status for one in core.read_node(pod.spec.node_name).status.conditions}
    assert conditions["Ready"] == "True"


def test_the_python_client_runs_commands_in_pods(cluster: Cluster, api: Any) -> None:
    core = kubernetes.client.CoreV1Api(api)
    session = kubernetes.stream.stream(
        core.connect_get_namespaced_pod_exec,
        "worker-0",
        "soperator",
        container="slurmd",
        command=["bash", "-c", "read word; echo $word on $(hostname); echo oops >&2; exit 7"],
        stdin=True,
        stdout=True,
        stderr=True,
        tty=False,
        _preload_content=False,
    )
    session.write_stdin("hello\n")
    session.run_forever(timeout=PATIENCE)
    assert (session.read_stdout(), session.read_stderr()) == ("hello on worker-0\n", "oops\n")
    assert session.returncode == 7


def test_the_python_client_sees_the_cluster_come_and_go(cluster: Cluster, api: Any) -> None:
    custom = kubernetes.client.CustomObjectsApi(api)
    where = ("slurm.nebius.ai", "v1", "soperator", "slurmclusters")
    assert custom.get_namespaced_custom_object(*where, "soperator")["status"]["phase"] == "Available"
    with_field = {"field_selector": "metadata.name=soperator", "timeout_seconds": PATIENCE}
    watch = kubernetes.watch.Watch().stream(custom.list_namespaced_custom_object, *where, **with_field)
    phases = (event["object"]["status"]["phase"] for event in watch)
    assert next(phases) == "Available"
    fault(cluster, "slurmdbd-down")
    assert "Not available" in phases
    cluster.sandbox.up()
    assert "Available" in phases
