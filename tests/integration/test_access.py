"""Everything in the access file works from outside the sandbox, and nothing else opens its doors."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import jwt
import psutil
import pytest
from airflow.sdk import Connection
from grpc import StatusCode
from nebius.aio.service_error import RequestError

from tests.integration.cluster import Cluster
from tests.integration.outside import Nebius, accounted, command_line, kubectl, ssh, ssh_command, ssh_files
from tests.patience import PATIENCE

pytestmark = pytest.mark.oldest_slurm

#: The versions of slurmrestd's interface that each Slurm serves.
SERVED = {
    "24.11": {"v0.0.40", "v0.0.41", "v0.0.42"},
    "26.05": {"v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45"},
}
#: The one that both serve.
V = "v0.0.42"


# ------------------------------------------------------------------------------------------------------- ssh


@pytest.mark.parametrize("user", ["root", "alice"])
def test_the_key_opens_the_login_node(cluster: Cluster, user: str) -> None:
    said = ssh(cluster, "whoami; hostname; sinfo --noheader --format=%P --partition=main | uniq", user=user)
    assert (said.returncode, said.stdout) == (0, f"{user}\nlogin-0\nmain*\n"), said.stderr


def test_a_remote_command_ends_with_its_own_exit_code(cluster: Cluster) -> None:
    assert ssh(cluster, "exit 42").returncode == 42


def test_one_word_with_spaces_is_a_line_of_shell(cluster: Cluster) -> None:
    shell = ("shell", "--name", cluster.settings.name, "--")
    assert command_line(*shell, "command -v sinfo; echo done").stdout.splitlines()[1:] == ["done"]
    assert command_line(*shell, "echo", "a; b").stdout == "a; b\n"


def test_a_login_shell_finds_slurm(cluster: Cluster) -> None:
    assert ssh(cluster, "bash -lc 'command -v sbatch srun sacct scontrol'").stdout.count("/usr/bin/") == 4


@pytest.mark.parametrize("user", ["root", "alice", "nobody-we-know"])
@pytest.mark.parametrize("method", ["password", "keyboard-interactive"])
def test_no_password_opens_it(cluster: Cluster, user: str, method: str) -> None:
    said = ssh(cluster, "true", "-v", "-o", f"PreferredAuthentications={method}", user=user)
    assert said.returncode == 255
    assert "debug1: Authentications that can continue: publickey\n" in said.stderr
    assert f"{user}@127.0.0.1: Permission denied (publickey).\n" in said.stderr


@pytest.mark.parametrize("user", ["root", "alice"])
def test_an_unknown_key_does_not_open_it(cluster: Cluster, user: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    known = f"UserKnownHostsFile={cluster.access['ssh']['known_hosts']}"
    command = ["ssh", "-F", "none", "-v", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"]
    command += ["-o", known, "-p", str(cluster.access["ssh"]["port"]), f"{user}@127.0.0.1", "true"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert said.returncode == 255
    assert "Offering public key" in said.stderr
    assert f"{user}@127.0.0.1: Permission denied (publickey)." in said.stderr


def test_the_login_node_proves_that_it_is_the_one_in_known_hosts(cluster: Cluster, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    other = (tmp_path / "key.pub").read_text().split()[1]
    true = cluster.access["ssh"]["host_key"].split()[1]
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(Path(cluster.access["ssh"]["known_hosts"]).read_text().replace(true, other))
    said = ssh(cluster, "true", "-o", f"UserKnownHostsFile={known_hosts}")
    assert said.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in said.stderr
    known_hosts.write_text("")
    said = ssh(cluster, "true", "-o", f"UserKnownHostsFile={known_hosts}")
    assert said.returncode == 255
    assert "Host key verification failed" in said.stderr


@pytest.mark.parametrize("protocol", ["scp", "sftp"])
def test_files_go_there_and_come_back(cluster: Cluster, protocol: str, tmp_path: Path) -> None:
    sent, returned = tmp_path / "sent", tmp_path / "returned"
    sent.write_bytes(os.urandom(300_000))
    files, port = ssh_files(cluster), str(cluster.access["ssh"]["port"])
    remote = f"/home/alice/{protocol}"
    if protocol == "scp":
        commands = [["scp", *files, "-P", port, sent, f"alice@127.0.0.1:{remote}"]]
        commands += [["scp", *files, "-P", port, f"alice@127.0.0.1:{remote}", returned]]
        scripts = [b"", b""]
    else:
        commands = [["sftp", *files, "-b", "-", "-P", port, "alice@127.0.0.1"]]
        scripts = [f"put {sent} {remote}\nget {remote} {returned}\n".encode()]
    for command, script in zip(commands, scripts, strict=True):
        subprocess.run(command, input=script, capture_output=True, timeout=PATIENCE, check=True)
    assert returned.read_bytes() == sent.read_bytes()
    # The workers have it as well: it went to the root that all share.
    assert cluster.run("srun", "stat", "--format=%U %s", remote) == "alice 300000\n"


def test_a_connection_takes_as_many_sessions_as_a_stock_sshd(cluster: Cluster) -> None:
    socket = f"/tmp/ssh-{os.getpid()}"
    master = ["-o", "ControlMaster=yes", "-o", "ControlPersist=yes", "-o", f"ControlPath={socket}"]
    command = ssh_command(cluster, "-v", "-o", "ControlMaster=no", "-o", f"ControlPath={socket}")
    sessions = []
    try:
        subprocess.run([*ssh_command(cluster, *master), "true"], capture_output=True, timeout=PATIENCE, check=True)
        for _ in range(10):
            session = subprocess.Popen([*command, "echo open; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            sessions.append(session)
            assert session.stdout is not None
            assert session.stdout.readline() == b"open\n"
        eleventh = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert "Session open refused by peer" in eleventh.stderr
    finally:
        for session in sessions:
            session.communicate(timeout=PATIENCE)
        subprocess.run([*command[:1], "-O", "exit", *command[1:]], capture_output=True, timeout=PATIENCE, check=False)


# ---------------------------------------------------------------------------------------------- slurmrestd


def token(cluster: Cluster, user: str = "root", *, age: float = 0, key: bytes | None = None) -> dict[str, str]:
    """The headers of a caller whose token was minted ``age`` seconds ago and lives for an hour."""
    if key is None:
        key = Path(cluster.access["rest"]["jwt_key_file"]).read_bytes()
    now = int(time.time() - age)
    claims = {"sun": user, "iat": now, "exp": now + 3600}
    return {"X-SLURM-USER-TOKEN": jwt.encode(claims, key, algorithm="HS256")}


def get(cluster: Cluster, path: str, headers: dict[str, str]) -> httpx.Response:
    return httpx.get(f"{cluster.access['rest']['url']}/{path}", headers=headers, timeout=PATIENCE)


@pytest.mark.each_slurm
def test_slurmrestd_serves_the_versions_of_its_slurm(cluster: Cluster) -> None:
    served = {
        version
        for version in (f"v0.0.{number}" for number in range(38, 50))
        if get(cluster, f"slurm/{version}/ping", token(cluster)).status_code == 200
    }
    assert served == SERVED[cluster.settings.slurm]


def test_slurmrestd_reaches_controller_and_accounting(cluster: Cluster) -> None:
    ping = get(cluster, f"slurm/{V}/ping", token(cluster)).json()
    assert [(one["hostname"], one["responding"]) for one in ping["pings"]] == [("controller-0", True)]
    nodes = get(cluster, f"slurm/{V}/nodes", token(cluster)).json()["nodes"]
    assert {node["name"] for node in nodes} >= {"worker-0", "worker-3", "worker-cpu-0"}
    assert get(cluster, f"slurmdb/{V}/clusters", token(cluster)).json()["clusters"][0]["name"] == "soperator"


@pytest.mark.each_slurm
@pytest.mark.parametrize("user", ["root", "alice"])
def test_a_job_goes_all_its_way_over_slurmrestd(cluster: Cluster, user: str) -> None:
    folder = "/root" if user == "root" else f"/home/{user}"
    job = {
        "name": "over-rest",
        "script": "#!/bin/bash\nwhoami; echo $CUDA_VISIBLE_DEVICES\n",
        "current_working_directory": folder,
        "environment": ["PATH=/usr/bin:/bin"],
        "tres_per_job": "gres/gpu:2",
    }
    url = f"{cluster.access['rest']['url']}/slurm/{V}/job/submit"
    submitted = httpx.post(url, headers=token(cluster, user), json={"job": job}, timeout=PATIENCE).json()
    assert submitted["errors"] == []
    job_id = submitted["job_id"]
    shown = get(cluster, f"slurm/{V}/job/{job_id}", token(cluster, user)).json()["jobs"][0]
    assert (shown["name"], shown["user_name"]) == ("over-rest", user)
    assert accounted(cluster, str(job_id))["State"] == "COMPLETED"
    kept = get(cluster, f"slurmdb/{V}/job/{job_id}", token(cluster, user)).json()["jobs"][0]
    assert (kept["state"]["current"], kept["exit_code"]["return_code"]["number"]) == (["COMPLETED"], 0)
    assert cluster.run("cat", f"{folder}/slurm-{job_id}.out") == f"{user}\n0,1\n"


def test_a_token_that_slurm_made_opens_slurmrestd(cluster: Cluster) -> None:
    made = ssh(cluster, "scontrol token lifespan=3600", user="alice").stdout.strip().removeprefix("SLURM_JWT=")
    for headers in ({"X-SLURM-USER-TOKEN": made}, {"Authorization": f"Bearer {made}"}):
        assert get(cluster, f"slurm/{V}/jobs", headers).status_code == 200


def refused(cluster: Cluster, headers: dict[str, str]) -> dict[str, int]:
    """What slurmrestd answers to a caller who should see nothing, after a look that nothing is what he sees."""
    codes = {}
    for path in (f"slurm/{V}/jobs", f"slurm/{V}/nodes", f"slurmdb/{V}/jobs"):
        answer = get(cluster, path, headers)
        codes[path] = answer.status_code
        shown: dict[str, Any] = answer.json() if answer.text.startswith("{") else {}
        assert not shown.get("jobs")
        assert not shown.get("nodes")
    return codes


def test_slurmrestd_refuses_a_caller_without_a_token(cluster: Cluster) -> None:
    cluster.sbatch("--hold")
    assert set(refused(cluster, {}).values()) == {401}


@pytest.mark.parametrize("flaw", ["expired", "forged"])
def test_slurmrestd_refuses_a_bad_token(cluster: Cluster, flaw: str) -> None:
    job = cluster.sbatch("--hold")
    bad = token(cluster, age=7200) if flaw == "expired" else token(cluster, key=b"not the key of this cluster, at all")
    # slurmrestd cannot judge a token by itself; what it then says is that those behind it refused.
    assert all(code >= 500 for code in refused(cluster, bad).values())
    url = f"{cluster.access['rest']['url']}/slurm/{V}/job/{job}"
    assert httpx.delete(url, headers=bad, timeout=PATIENCE).status_code >= 500
    assert cluster.job_state(job) == "PENDING"


def test_alices_token_gives_her_no_power_over_other_peoples_jobs(cluster: Cluster) -> None:
    job = cluster.sbatch("--hold")
    url = f"{cluster.access['rest']['url']}/slurm/{V}/job/{job}"
    answer = httpx.delete(url, headers=token(cluster, "alice"), timeout=PATIENCE)
    # The refusal stands in the body alone.
    assert [one["error"]["message"] for one in answer.json()["status"]] == ["Access/permission denied"]
    assert cluster.job_state(job) == "PENDING"
    assert httpx.delete(url, headers=token(cluster), timeout=PATIENCE).status_code == 200
    assert cluster.job_state(job) == "CANCELLED"


# ------------------------------------------------------------------------------------- the two doubles, Airflow


def test_the_kubeconfig_opens_the_kubernetes_api(cluster: Cluster) -> None:
    said = kubectl(cluster, "get", "slurmclusters", "--output=name")
    assert said.stdout == "slurmcluster.slurm.nebius.ai/soperator\n", said.stderr
    facts = cluster.access["kubernetes"]
    context = kubectl(cluster, "config", "view", "--minify", "--output=jsonpath={.current-context} {..namespace}")
    assert context.stdout.split() == [facts["context"], facts["namespace"]]


def test_the_kubernetes_api_refuses_another_token(cluster: Cluster) -> None:
    said = kubectl(cluster, "--token=another", "get", "pods")
    assert said.returncode == 1
    assert "You must be logged in to the server" in said.stderr


def test_the_nebius_sdk_reaches_the_block_and_the_node_groups(cluster: Cluster) -> None:
    with Nebius(cluster) as nebius:
        cluster.settle()
        block = nebius.block()
        assert (block.status.current_limit, block.status.usage) == (cluster.settings.block, cluster.settings.gpus)
        training = nebius.group("training")
        assert training.status.ready_node_count == 1
        assert nebius.group("inference").status.ready_node_count == 0


def test_the_nebius_api_refuses_another_token(cluster: Cluster) -> None:
    with Nebius(cluster, credentials="another") as nebius, pytest.raises(RequestError) as refusal:
        nebius.block()
    assert refusal.value.status.code is StatusCode.UNAUTHENTICATED


def test_secrets_are_for_the_owner_alone(cluster: Cluster) -> None:
    facts = cluster.access
    files = [facts["ssh"]["key_file"], facts["rest"]["jwt_key_file"], facts["kubernetes"]["kubeconfig"]]
    assert {oct(Path(file).stat().st_mode & 0o777) for file in files} == {"0o600"}
    assert cluster.paths.state.stat().st_mode & 0o077 == 0


def connection(cluster: Cluster, name: str) -> Connection:
    return Connection.from_uri(cluster.access["airflow_connections"][f"AIRFLOW_CONN_{name}"], conn_id=name.lower())


def test_the_ssh_connection_says_all_that_ssh_needs(cluster: Cluster) -> None:
    ssh = cluster.access["ssh"]
    for name, kind in (("SSH_DEFAULT", "ssh"), ("SOPERATOR_DEFAULT", "soperator")):
        parsed = connection(cluster, name)
        assert (parsed.conn_type, parsed.host, parsed.port, parsed.login) == (kind, "127.0.0.1", ssh["port"], "root")
        assert parsed.password is None
        # Text for a switch, such as "false", would show it as switched on in Airflow's form.
        assert parsed.extra_dejson == {"key_file": ssh["key_file"], "host_key": ssh["host_key"]}


def test_the_kubernetes_connection_names_the_kubeconfig(cluster: Cluster) -> None:
    facts = cluster.access["kubernetes"]
    parsed = connection(cluster, "KUBERNETES_DEFAULT")
    assert parsed.conn_type == "kubernetes"
    assert parsed.extra_dejson == {
        "kube_config_path": facts["kubeconfig"],
        "cluster_context": facts["context"],
        "namespace": facts["namespace"],
    }


def test_the_nebius_connection_has_endpoint_and_token(cluster: Cluster) -> None:
    facts = cluster.access["nebius"]
    parsed = connection(cluster, "NEBIUS_DEFAULT")
    assert (parsed.conn_type, f"{parsed.host}:{parsed.port}") == ("nebius", facts["endpoint"])
    assert (parsed.login or None, parsed.password) == (None, facts["token"])
    assert parsed.extra_dejson == {"insecure": True}


def test_no_connection_has_a_text_that_is_too_short_to_be_masked(cluster: Cluster) -> None:
    """Airflow warns of such, in the log of each task."""
    for name in cluster.access["airflow_connections"]:
        extra = connection(cluster, name.removeprefix("AIRFLOW_CONN_")).extra_dejson
        assert [key for key, value in extra.items() if isinstance(value, str) and len(value) < 5] == []


def test_airflow_finds_the_printed_connections_in_its_environment(cluster: Cluster) -> None:
    printed = command_line("connections", "--name", cluster.settings.name).stdout
    script = f"{printed}\n{sys.executable} -c 'from airflow.models import Connection as C; "
    script += 'print(C.get_connection_from_secrets("soperator_default").port)\''
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert said.stdout.split()[-1] == str(cluster.access["ssh"]["port"])


def test_nothing_of_the_sandbox_can_be_reached_from_another_machine(cluster: Cluster) -> None:
    outer = cluster.sandbox.init.outer()
    assert outer is not None
    own = {process.pid for process in outer.children(recursive=True)}
    bound = [
        connection.laddr
        for connection in psutil.net_connections("inet")
        if connection.pid in own and not connection.raddr and connection.laddr
    ]
    addresses = {ipaddress.ip_address(address.ip.removeprefix("::ffff:")) for address in bound}
    assert {str(address) for address in addresses if not address.is_loopback} == set()
    assert {address.port for address in bound} >= set(cluster.access["ports"].values())
