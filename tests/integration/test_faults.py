"""Faults brought about from the command line: what each breaks, what keeps running, and how it ends."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest
from grpc import StatusCode
from nebius.aio.service_error import RequestError

from sandbox.faults import DRAIN_REASONS, FAULTS
from sandbox.lifecycle import Sandbox
from sandbox.settings import SUITES, Settings
from tests.integration import test_checks_double
from tests.integration.cluster import NOT_UP, Cluster
from tests.integration.outside import (
    Nebius,
    accounted,
    command_line,
    fault,
    kubectl,
    ssh,
    ssh_command,
    wait_until_saved,
)
from tests.patience import PATIENCE


def status(cluster: Cluster) -> subprocess.CompletedProcess[str]:
    return command_line("status", "--name", cluster.settings.name, env={"COLUMNS": "200"})


def state_of(cluster: Cluster, daemon: str) -> str:
    """What the table of `status` says of a daemon."""
    line = next(line for line in status(cluster).stdout.splitlines() if line.startswith(f"│ {daemon} "))
    return line.split("│")[-2].strip()


def heal(cluster: Cluster) -> None:
    said = command_line("up", "--name", cluster.settings.name)
    assert said.returncode == 0, said.stderr
    wait_sound(cluster)


def wait_sound(cluster: Cluster) -> None:
    """The status has some seconds for each daemon, and says of one that needs longer that it does not answer."""
    cluster.wait("all that should run does", lambda: status(cluster).returncode == 0)


def wait_down(cluster: Cluster, daemon: str) -> None:
    cluster.wait(f"{daemon} is seen to be down", lambda: state_of(cluster, daemon) == "down")


def shown(cluster: Cluster) -> str:
    """All of the status, once the doubles have answered in the seconds that it has for them."""

    def whole() -> str | None:
        said = " ".join(status(cluster).stdout.split())
        return said if "Capacity block" in said else None

    return cluster.wait("the doubles answer", whole)


# ------------------------------------------------------------------------------------------------- daemons


def test_slurmctld_down(cluster: Cluster) -> None:
    running = cluster.held_job("--gpus=2", "--nodelist=worker-0")
    cluster.wait_job(running, "RUNNING")
    waiting = cluster.sbatch("--nodes=1", "--gpus=8", "--nodelist=worker-0")
    wait_until_saved(cluster)
    fault(cluster, "slurmctld-down")
    with cluster.commands_wait(4):
        wait_down(cluster, "slurmctld")
        assert status(cluster).returncode == 1
        said = cluster.try_run("scontrol", "show", "nodes")
    assert said.returncode == 1
    assert "Unable to contact slurm controller" in said.stderr
    # What runs needs no controller: the job ends while there is none, and its node reports that later.
    cluster.let_go(running)
    heal(cluster)
    assert accounted(cluster, running)["State"] == "COMPLETED"
    assert accounted(cluster, waiting)["State"] == "COMPLETED"


def test_slurmctld_hung(cluster: Cluster) -> None:
    job = cluster.sbatch("--hold")
    fault(cluster, "slurmctld-hung")
    with cluster.commands_wait(100):
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                cluster.sandbox.init.run("sshd", ["squeue"], timeout=3)
            # Its port is open all the same: this is not a controller that is down.
            said = ssh(cluster, f"timeout 60 bash -c ': < /dev/tcp/127.0.0.1/{cluster.access['ports']['slurmctld']}'")
            assert said.returncode == 0
            waiting = subprocess.Popen([*ssh_command(cluster), f"scontrol release {job}"])
            assert waiting.poll() is None
        finally:
            fault(cluster, "clear")
        # The call that hung goes through.
        assert waiting.wait(timeout=PATIENCE) == 0
    assert accounted(cluster, job)["State"] == "COMPLETED"
    wait_sound(cluster)


def test_slurmctld_hung_is_seen_in_the_status(cluster: Cluster) -> None:
    fault(cluster, "slurmctld-hung")
    said = status(cluster)
    assert said.returncode == 1
    assert "does not answer" in next(line for line in said.stdout.splitlines() if "slurmctld" in line)
    # A second `up` heals this as well.
    heal(cluster)


def test_slurmdbd_down(cluster: Cluster) -> None:
    before = cluster.sbatch()
    accounted(cluster, before)
    fault(cluster, "slurmdbd-down")
    wait_down(cluster, "slurmdbd")
    said = cluster.try_run("sacct", f"--jobs={before}")
    assert said.returncode == 1
    assert "Connection refused" in said.stderr
    meanwhile = cluster.sbatch("--gpus=1", wrap="exit 5")
    cluster.wait_job(meanwhile, "FAILED")
    heal(cluster)
    kept = accounted(cluster, meanwhile)
    assert (kept["State"], kept["ExitCode"]) == ("FAILED", "5:0")
    assert accounted(cluster, before)["State"] == "COMPLETED"


def test_slurmrestd_down(cluster: Cluster) -> None:
    url = f"{cluster.access['rest']['url']}/slurm/v0.0.42/ping"
    assert httpx.get(url, timeout=PATIENCE).status_code == 401
    fault(cluster, "slurmrestd-down")
    wait_down(cluster, "slurmrestd")
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, timeout=10)
    heal(cluster)
    assert httpx.get(url, timeout=PATIENCE).status_code == 401


def test_a_daemon_that_is_down_cannot_be_killed_again(cluster: Cluster) -> None:
    fault(cluster, "slurmrestd-down")
    said = command_line("fault", "--name", cluster.settings.name, "slurmrestd-down")
    assert said.returncode == 1
    assert "slurmrestd does not run" in said.stderr


def test_login_cut_in_the_middle_of_a_command(cluster: Cluster) -> None:
    file = f"/root/cut-{time.time_ns()}"
    words = f"echo started; until test -e {file}; do sleep 0.1; done; touch {file}.done"
    command = ssh_command(cluster)
    client = subprocess.Popen([*command, words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "started\n"
    assert "1 login connections were cut" in fault(cluster, "login-cut")
    _, stderr = client.communicate(timeout=PATIENCE)
    assert client.returncode == 255
    assert "closed" in stderr or "reset" in stderr or "Broken" in stderr
    # What ran over it runs on, and new connections are welcome.
    cluster.run("touch", file)
    cluster.wait("the command has ended by itself", lambda: ssh(cluster, f"test -e {file}.done").returncode == 0)


# --------------------------------------------------------------------------------------------------- nodes


@pytest.fixture
def impatient() -> Iterator[Cluster]:
    """A sandbox whose Slurm can be told to give a silent node up after a few seconds."""
    settings = Settings(name=f"impatient-{os.getpid()}", slurm=max(SUITES), workers=2, static=0)
    sandbox = Sandbox(settings)
    sandbox.up()
    try:
        yield Cluster(sandbox)
    finally:
        sandbox.down()


def test_node_dies(impatient: Cluster) -> None:
    cluster = impatient
    before = cluster.node("worker-0").instance_id
    job = cluster.held_job("--gpus=1", "--nodelist=worker-0", "--requeue")
    lost = cluster.held_job("--gpus=1", "--nodelist=worker-0", "--no-requeue")
    for one in (job, lost):
        cluster.wait_job(one, "RUNNING")
    assert before in fault(cluster, "node-dies", "worker-0")
    # Down it may be for a moment only; accounting remembers.
    events = ["sacctmgr", "--noheader", "--parsable2", "show", "event", "nodes=worker-0", "format=state,reason"]
    # On a busy machine a node that is well may be silent for as long as this.
    with cluster.configured("slurmd_timeout", 3):
        cluster.wait("Slurm has missed the node", lambda: re.search(r"DOWN.*\|Not responding", cluster.run(*events)))
    assert accounted(cluster, lost)["State"] == "NODE_FAIL"
    # Another machine comes in the place of the dead one.
    cluster.wait_node("worker-0", lacks=NOT_UP)
    after = cluster.node("worker-0").instance_id
    assert after not in ("", before)
    assert cluster.usage() == cluster.settings.gpus
    assert before not in kubectl(cluster, "get", "nodes", "--output=name").stdout
    held_back = ["PENDING", "BeginTime"]
    cluster.wait(
        "the job is back in the queue",
        lambda: cluster.run("squeue", "--noheader", f"--job={job}", "--format=%T %r").split() == held_back,
    )
    cluster.start_soon(job)
    cluster.let_go(job)
    kept = accounted(cluster, job)
    assert (kept["State"], kept["Restarts"]) == ("COMPLETED", "1")


def test_node_condition(cluster: Cluster) -> None:
    machine = cluster.machine_of("worker-0")
    assert machine
    words = ["node-condition", "worker-0", "NebiusMaintenanceScheduled"]
    wait = ["wait", f"--timeout={PATIENCE}s", f"node/{machine}"]
    assert machine in fault(cluster, *words, "--reason=Planned", "--message=tomorrow at noon")
    assert kubectl(cluster, *wait, "--for=condition=NebiusMaintenanceScheduled=True").returncode == 0
    described = kubectl(cluster, "describe", "node", machine).stdout
    line = next(line for line in described.splitlines() if "NebiusMaintenanceScheduled" in line)
    assert line.split()[1] == "True"
    assert line.endswith("tomorrow at noon")
    fault(cluster, *words, "--status=False")
    assert kubectl(cluster, *wait, "--for=condition=NebiusMaintenanceScheduled=False").returncode == 0


def test_node_drain_knows_each_reason_by_its_short_name(cluster: Cluster) -> None:
    for name, reason in DRAIN_REASONS.items():
        fault(cluster, "node-drain", "worker-cpu-1", name)
        node = cluster.node("worker-cpu-1")
        assert "DRAIN" in node.state
        assert node.reason == reason
        cluster.run("scontrol", "update", "nodename=worker-cpu-1", "state=undrain")


@pytest.mark.each_slurm
def test_node_no_boot_until_it_is_cleared(cluster: Cluster) -> None:
    fault(cluster, "node-no-boot", "worker-1")
    assert "worker-1 does not boot" in shown(cluster)
    cluster.run("scontrol", "power", "up", "worker-1")
    cluster.wait("the machine is there", lambda: cluster.machine_of("worker-1"))
    cluster.wait("its Pod is not", lambda: "BackOff" in kubectl(cluster, "describe", "pod", "worker-1").stdout)
    fault(cluster, "clear")
    cluster.wait_node("worker-1", has={"IDLE"}, lacks=NOT_UP)


# --------------------------------------------------------------------------------------------- the two APIs


def test_kubernetes_api_errors(cluster: Cluster) -> None:
    fault(cluster, "api", "kubernetes", "error", "--matching=GET pods/worker-0", "--count=1")
    struck = kubectl(cluster, "get", "pod", "worker-0")
    assert struck.returncode == 1
    assert "Error from server (ServiceUnavailable)" in struck.stderr
    assert kubectl(cluster, "get", "pod", "worker-0").returncode == 0


def test_kubernetes_api_conflicts(cluster: Cluster) -> None:
    fault(cluster, "api", "kubernetes", "conflict", "--matching=PATCH nodesets/*", "--count=0")
    scale = ["patch", "nodeset", "worker", "--type=merge", "--patch", '{"spec": {"maxUnavailable": "21%"}}']
    for _ in range(2):
        struck = kubectl(cluster, *scale)
        assert struck.returncode == 1
        assert "Error from server (Conflict)" in struck.stderr
    assert "conflict on PATCH nodesets/*" in shown(cluster)
    fault(cluster, "clear")
    assert kubectl(cluster, *scale).returncode == 0
    assert kubectl(cluster, *[word.replace("21%", "20%") for word in scale]).returncode == 0


def test_kubernetes_api_hangs(cluster: Cluster) -> None:
    fault(cluster, "api", "kubernetes", "hang", "--matching=* slurmclusters*", "--count=0")
    struck = kubectl(cluster, "get", "slurmcluster", "soperator", "--request-timeout=2s")
    assert struck.returncode == 1
    assert "exceeded" in struck.stderr or "timeout" in struck.stderr.lower()
    assert kubectl(cluster, "get", "pod", "worker-0").returncode == 0
    fault(cluster, "clear")
    assert kubectl(cluster, "get", "slurmcluster", "soperator").returncode == 0


def test_powering_a_node_survives_conflicts(cluster: Cluster) -> None:
    """The power manager tries again, as Soperator's does."""
    fault(cluster, "api", "kubernetes", "conflict", "--matching=PUT nodesetpowerstates/worker", "--count=3")
    assert "conflict on PUT nodesetpowerstates/worker" in shown(cluster)
    cluster.run("scontrol", "power", "up", "worker-1")
    cluster.wait_node("worker-1", has={"IDLE"}, lacks=NOT_UP)
    # All of them have struck.
    assert "conflict on PUT" not in shown(cluster)


@pytest.mark.parametrize(
    ("effect", "codes"),
    [
        ("error", {StatusCode.INTERNAL, StatusCode.UNAVAILABLE}),
        ("hang", {StatusCode.DEADLINE_EXCEEDED}),
        ("conflict", {StatusCode.ABORTED}),
    ],
)
def test_nebius_api_faults(cluster: Cluster, effect: str, codes: set[StatusCode]) -> None:
    cluster.settle()
    fault(cluster, "api", "nebius", effect, "--matching=NodeGroupService/Get", "--count=0")
    with Nebius(cluster) as nebius:
        with pytest.raises(RequestError) as struck:
            nebius.group("training", hangs=effect == "hang")
        assert struck.value.status.code in codes
        # What else it answers goes on as before.
        assert nebius.block().status.usage == cluster.settings.gpus
        fault(cluster, "clear")
        assert nebius.group("training").metadata.name == "worker-0"


# ------------------------------------------------------------------------------------------ the capacity block


def test_block_limit(cluster: Cluster) -> None:
    cluster.settle()
    fault(cluster, "block-limit", "8")
    with Nebius(cluster) as nebius:
        assert (nebius.block().status.current_limit, nebius.block().status.usage) == (8, 8)
        cluster.run("scontrol", "power", "up", "worker-1")
        cluster.wait("Kubernetes says why", lambda: "0 of 8 GPUs free" in kubectl(cluster, "get", "events").stdout)
        assert cluster.machine_of("worker-1") is None
        fault(cluster, "clear")
        assert nebius.block().status.current_limit == cluster.settings.block
    cluster.wait_node("worker-1", has={"IDLE"}, lacks=NOT_UP)


def test_allowance(cluster: Cluster) -> None:
    cluster.settle()
    assert "project-e00sandbox may have 8 GPUs" in fault(cluster, "allowance", "project-e00sandbox", "8")
    cluster.run("scontrol", "power", "up", "worker-1")
    cluster.wait("Kubernetes says why", lambda: "may have 8 GPUs" in kubectl(cluster, "get", "events").stdout)
    assert cluster.machine_of("worker-1") is None
    fault(cluster, "clear")
    cluster.wait_node("worker-1", has={"IDLE"}, lacks=NOT_UP)


def test_block_unknown(cluster: Cluster) -> None:
    with Nebius(cluster) as nebius:
        assert nebius.block().status.usage_state.name == "USAGE_STATE_USED"
        fault(cluster, "block-unknown")
        assert nebius.block().status.usage_state.name == "USAGE_STATE_UNKNOWN"
        fault(cluster, "clear")
        assert nebius.block().status.usage_state.name == "USAGE_STATE_USED"


def test_block_exhausted(cluster: Cluster) -> None:
    cluster.settle()
    free = cluster.settings.block - cluster.usage()
    assert f"holds {free - 8} GPUs" in fault(cluster, "block-exhausted", "--leave=8")
    assert "somebody-else" in shown(cluster)
    cluster.power_up("worker-1")
    with Nebius(cluster) as nebius:
        status_ = nebius.block().status
        assert status_.usage == status_.current_limit
    fault(cluster, "clear")
    assert cluster.usage() == 2 * cluster.settings.gpus


# ---------------------------------------------------------------------------------------------------- the jail


def seconds_for_files(cluster: Cluster) -> float:
    """How long a number of calls on file names takes on the login node, as the one who makes them measures it."""
    script = (
        "import os, time; s = time.monotonic(); [os.stat(chr(47)) for _ in range(100)]; print(time.monotonic() - s)"
    )
    said = ssh(cluster, f"python3 -ISc '{script}'")
    assert said.returncode == 0, said.stderr
    return float(said.stdout)


def test_slow_jail(cluster: Cluster) -> None:
    at_least = 100 * 0.02
    # One measurement may be that of a machine with more to do.
    cluster.wait("files are fast", lambda: seconds_for_files(cluster) < at_least / 10)
    fault(cluster, "slow-jail", "--delay=0.02")
    assert seconds_for_files(cluster) >= at_least
    fault(cluster, "clear")
    cluster.wait("files are fast again", lambda: seconds_for_files(cluster) < at_least / 10)
    # Those who were slowed down go on as before.
    assert accounted(cluster, cluster.sbatch("--nodelist=worker-0"))["State"] == "COMPLETED"


# ------------------------------------------------------------------------------------------------------ all


def test_every_fault_of_the_command_line_has_a_test() -> None:
    defined = globals() | vars(test_checks_double)
    names = {name.removeprefix("test_").replace("_", "-") for name in defined if name.startswith("test_")}
    untested = {one.name for one in FAULTS if not any(name.startswith(one.name) for name in names)}
    # These two have tests of other names: an API fault one for each API and effect, and clear ends nearly all others.
    assert untested == {"api", "clear"}
