"""The doctor: what may be wrong with a connection, planted one at a time, is named with its remedy."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest

from airflow_provider_soperator.cli.cloud_checks import RIGHTS
from airflow_provider_soperator.cli.doctor import airflow_checks, cluster_checks
from airflow_provider_soperator.cli.verdicts import Verdict, judged
from airflow_provider_soperator.hooks import check, slurm
from airflow_provider_soperator.nebius import api
from sandbox.settings import NAMESPACE
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.test_connection_check import listening, machine_without_slurm, new_key, public_key
from tests.integration.test_least_rights import Account, each_taken_away
from tests.patience import PATIENCE

BLOCK = "capacityblockgroup-e00sandbox"
#: A folder of the jail for what is planted there.
PLANTED = "/mnt/planted"


@dataclass
class Bench:
    """Where faults are planted, and what removes them."""

    cluster: Cluster
    connections: Connections
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def examine(self, conn_id: str, **asked: Any) -> list[Verdict]:
        names = ("partition", "account", "qos", "folder", "python", "feature", "nebius_conn_id", "block")
        args = argparse.Namespace(conn_id=conn_id, **dict.fromkeys(names, "") | asked)
        return asyncio.run(cluster_checks(args))

    def ssh(self, asked: dict[str, Any] | None = None, **fields: Any) -> list[Verdict]:
        return self.examine(self.connections.login_node(**fields).slurm_conn_id, **asked or {})

    def other(self, **fields: Any) -> list[Verdict]:
        return self.examine(self.connections.define(**fields))

    def rest(self, **fields: Any) -> list[Verdict]:
        return self.other(**{"rest_url": self.cluster.access["rest"]["url"], "login": "root", **fields})

    def kubernetes(self, change: Callable[[dict[str, Any]], Any] = lambda config: None, **fields: Any) -> list[Verdict]:
        """Over a kubeconfig that is changed."""
        config = json.loads(self.cluster.kubectl("config", "view", "--raw", "--output=json"))
        change(config)
        conn_id = self.connections.define("kubernetes", kube_config=json.dumps(config))
        return self.other(kubernetes_conn_id=conn_id, **fields)

    def account(self, rights: dict[str, Any], **asked: Any) -> list[Verdict]:
        """As an account that has some manifests of docs/rbac, beside a login node."""
        account = Account(self.cluster, self.connections, self.folder, NAMESPACE)
        self.stack.callback(account.remove, next(iter(rights), "account"))
        for feature, things in rights.items():
            account.has(feature, things)
        return self.ssh(asked, kubernetes_conn_id=account.conn_id)

    def nebius(self, block: str = "", **fields: Any) -> list[Verdict]:
        host, _, port = self.cluster.access["nebius"]["endpoint"].partition(":")
        right = {"host": host, "port": int(port), "password": self.cluster.access["nebius"]["token"], "insecure": True}
        said = {name: value for name, value in {**right, **fields}.items() if value is not None}
        conn_id = self.connections.define("nebius", **said)
        # The way to Slurm is of no interest here.
        return self.examine("nowhere", nebius_conn_id=conn_id, block=block)

    def run(self, command: str, undo: str) -> None:
        """In the jail."""
        self.stack.callback(self.cluster.run, "sh", "-c", undo)
        self.cluster.run("sh", "-c", command)

    def scontrol(self, change: str, undo: str) -> None:
        self.run(f"scontrol update {change}", f"scontrol update {undo}")

    def script(self, name: str, prints: str) -> str:
        """A program that prints something, in the place of an interpreter."""
        path = f"{PLANTED}/{name}"
        self.run(f"mkdir -p {PLANTED}; printf '#!/bin/sh\\necho {prints}\\n' >{path}; chmod +x {path}", f"rm {path}")
        return path

    def without(self, *modules: str) -> None:
        for module in modules:
            self.monkeypatch.setitem(sys.modules, module, None)


@pytest.fixture
def bench(
    cluster: Cluster, connections: Connections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.delenv("AIRFLOW_CONN_NEBIUS_DEFAULT")
    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    # What is planted is found at once, but for a host that says nothing: a limit that strikes would hide it.
    monkeypatch.setattr(slurm, "CONNECT_TIMEOUT", PATIENCE)
    limits = dict.fromkeys(("timeout", "per_retry_timeout", "auth_timeout"), float(PATIENCE))
    monkeypatch.setattr(api, "_QUICK", {**api._QUICK, **limits})
    monkeypatch.setattr(judged, "__defaults__", (float(PATIENCE),))
    made = Bench(cluster, connections, tmp_path, monkeypatch)
    with made.stack:
        yield made


Planting = Callable[[Bench], list[Verdict]]


def silent(bench: Bench) -> list[Verdict]:
    bench.monkeypatch.setattr(slurm, "CONNECT_TIMEOUT", 2)
    return bench.ssh(port=bench.stack.enter_context(listening(answers=True)))


def no_slurm(bench: Bench) -> list[Verdict]:
    key_file = bench.cluster.access["ssh"]["key_file"]
    return bench.ssh(**bench.stack.enter_context(machine_without_slurm(key_file)))


def skewed(bench: Bench) -> list[Verdict]:
    bench.monkeypatch.setattr(check, "time", SimpleNamespace(time=lambda: time.time() - 3000))
    return bench.ssh()


def broken(name: str) -> Planting:
    def plant(bench: Bench) -> list[Verdict]:
        bench.cluster.fault(name)
        return bench.ssh()

    return plant


def drained(bench: Bench) -> list[Verdict]:
    for node in ("worker-cpu-0", "worker-cpu-1"):
        bench.cluster.fault("node-drain", node=node, reason="maintenance")
    bench.run("scontrol create PartitionName=planted Nodes=worker-cpu-[0-1]", "scontrol delete PartitionName=planted")
    return bench.ssh({"partition": "planted"})


def partition_down(bench: Bench) -> list[Verdict]:
    bench.run(
        "scontrol create PartitionName=planted Nodes=worker-cpu-0 State=DOWN", "scontrol delete PartitionName=planted"
    )
    return bench.ssh({"partition": "planted"})


def of_root(bench: Bench) -> list[Verdict]:
    bench.run("mkdir /home/alice/airflow", "rmdir /home/alice/airflow")
    return bench.ssh(login="alice")


def disk(options: str) -> Planting:
    def plant(bench: Bench) -> list[Verdict]:
        bench.run(f"mkdir -p {PLANTED} && mount -t tmpfs -o {options} tmpfs {PLANTED}", f"umount {PLANTED}")
        return bench.ssh({"folder": PLANTED})

    return plant


def secret(bench: Bench) -> str:
    return b64encode(Path(bench.cluster.access["rest"]["jwt_key_file"]).read_bytes()).decode()


def expired(bench: Bench) -> list[Verdict]:
    key = Path(bench.cluster.access["rest"]["jwt_key_file"]).read_bytes()
    claims = {"exp": int(time.time()) - 3600, "iat": int(time.time()) - 7200, "sun": "root"}
    return bench.rest(jwt_token=jwt.encode(claims, key, "HS256"))


def missing_extra(extra: str) -> Planting:
    def plant(bench: Bench) -> list[Verdict]:
        if extra == "nebius":
            bench.without("nebius.sdk")
            return bench.nebius()
        bench.without("kubernetes_asyncio", "kubernetes_asyncio.client", "httpx")
        return bench.rest(jwt_secret=secret(bench)) if extra == "rest" else bench.kubernetes()

    return plant


def one_right_less(bench: Bench) -> list[Verdict]:
    things = Account(bench.cluster, bench.connections, bench.folder, NAMESPACE).rights("pod-events")
    _, _, without = next(one for one in each_taken_away(things) if one[:2] == ("events", "list"))
    return bench.account({"pod-events": without})


def no_lease_rights(bench: Bench) -> list[Verdict]:
    return bench.nebius(lease_conn_id=bench.connections.viewer(), lease_namespace=NAMESPACE)


def told_by_airflow(bench: Bench) -> list[Verdict]:
    bench.monkeypatch.setattr("airflow.jobs.job.most_recent_job", lambda name: None)
    return list(airflow_checks())


def set_user(config: dict[str, Any], **fields: str) -> None:
    config["users"][0]["user"] = fields


def set_cluster(config: dict[str, Any], **fields: str) -> None:
    config["clusters"][0]["cluster"].update(fields)


OTHER_KEY = "dGhlIGtleSBvZiBxdWl0ZSBhbm90aGVyIGNsdXN0ZXIu"
CERTIFICATE = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCm5vbmUKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="
#: What is planted, and how it is named.
FAULTS: dict[str, tuple[Planting, str]] = {
    # The connection as it is written
    "no-connection": (lambda g: g.examine("nowhere"), "there is no connection nowhere"),
    "field-with-a-typo": (lambda g: g.ssh(hostkey="ssh-ed25519 AAAA"), "unknown extra field hostkey"),
    "two-keys": (lambda g: g.ssh(private_key="a"), "key_file and private_key are both set"),
    "no-way-to-it": (lambda g: g.other(login="root"), "does not say how to reach the cluster"),
    "two-ways-to-it": (lambda g: g.ssh(ssh_conn_id="ssh_default"), "ssh_conn_id and a login node as host are both set"),
    "unknown-transport": (lambda g: g.ssh(transport="telnet"), "transport is 'telnet', but can be"),
    "transport-without-its-fields": (lambda g: g.ssh(transport="rest"), "transport is rest, which needs rest_url"),
    "link-without-placeholders": (lambda g: g.ssh(job_link="https://a/{nothing}"), "job_link"),
    "no-ssh-connection": (lambda g: g.other(ssh_conn_id="nowhere"), "there is no connection nowhere"),
    "ssh-connection-without-host": (lambda g: g.other(ssh_conn_id="kubernetes_default"), "the connection has no host"),
    # SSH
    "host": (lambda g: g.ssh(host="no-such-host.invalid"), "the host name is unknown"),
    "port": (lambda g: g.ssh(port=9), "nothing listens there"),
    "silent-host": (silent, "the host does not answer"),
    "user": (lambda g: g.ssh(login="nobody-there"), "the login was refused"),
    "other-key": (lambda g: g.ssh(key_file=new_key(g.folder)), "the login was refused"),
    "no-key-file": (lambda g: g.ssh(key_file="/no/such/key"), "the private key cannot be used"),
    "key-that-is-none": (lambda g: g.ssh(key_file=None, private_key="no key"), "the private key cannot be used"),
    "key-with-passphrase": (lambda g: g.ssh(key_file=new_key(g.folder, "secret")), "encrypted"),
    "host-key-unknown": (lambda g: g.ssh(host_key=None), "the host key is unknown"),
    "host-key-changed": (lambda g: g.ssh(host_key=public_key(new_key(g.folder))), "the host key has changed"),
    "host-key-that-is-none": (lambda g: g.ssh(host_key="no key"), "host_key is not a public key"),
    "no-slurm-there": (no_slurm, "scontrol: not found"),
    # slurmrestd
    "rest-host": (lambda g: g.rest(rest_url="http://no-such-host.invalid", jwt_token="a"), "the host name in"),
    "rest-port": (lambda g: g.rest(rest_url="http://127.0.0.1:9", jwt_token="a"), "nothing listens at"),
    "rest-with-tls": (
        lambda g: g.rest(rest_url=g.cluster.access["rest"]["url"].replace("http:", "https:"), jwt_token="a"),
        "does not speak TLS",
    ),
    "rest-without-token": (lambda g: g.rest(), "slurmrestd wants a token"),
    "rest-secret-without-user": (lambda g: g.rest(login="", jwt_secret=secret(g)), "a token is made for a user"),
    "rest-key-of-another-cluster": (lambda g: g.rest(jwt_secret=OTHER_KEY), "slurmrestd refused the token"),
    "rest-key-not-base64": (lambda g: g.rest(jwt_secret="%"), "jwt_secret is not in base64"),
    "rest-token-that-is-none": (lambda g: g.rest(jwt_token="no token"), "slurmrestd refused the token"),
    "rest-token-expired": (expired, "expired|refused the token"),
    "rest-without-files": (lambda g: g.rest(jwt_secret=secret(g)), "output of jobs cannot be reached this way"),
    # Slurm
    "slurmctld-down": (broken("slurmctld-down"), "slurmctld at .* is down"),
    "slurmdbd-down": (broken("slurmdbd-down"), "sacctmgr: "),
    "clock": (skewed, "the cluster's clock is (2999|3[0-5]\\d\\d) s ahead of"),
    "partition": (lambda g: g.ssh({"partition": "mian"}), "there is no partition mian"),
    "partition-down": (partition_down, "partition planted is DOWN"),
    "nodes-drained": (drained, "none of the 2 nodes of planted can take a job"),
    "account": (lambda g: g.ssh({"account": "physics"}), "root may not use the account physics"),
    "qos": (lambda g: g.ssh({"qos": "high"}), "root may not use the QOS high"),
    "submission-refused": (lambda g: g.ssh({"partition": "mian"}), "sbatch: .*invalid partition"),
    "no-rights-on-nodes": (lambda g: g.ssh(login="alice"), "The user may not power, drain or reserve nodes"),
    # Files and Python
    "folder-missing": (lambda g: g.ssh({"folder": "/nowhere"}), "jobs cannot write to /nowhere"),
    "folder-of-root": (of_root, "jobs cannot write to /home/alice/airflow .*Permission denied"),
    "disk-full": (disk("size=4k"), "No space left on device"),
    "disk-read-only": (disk("ro"), "Read-only file system"),
    "no-python": (lambda g: g.ssh({"python": "python9"}), "there is no Python python9 on the cluster"),
    "python-too-old": (lambda g: g.ssh({"python": g.script("old", "2.7 /bin/old")}), r"Python 2.7 .* is too old"),
    "python-differs": (lambda g: g.ssh({"python": g.script("new", "3.99 /bin/new")}), "3.99 .* differs from Airflow's"),
    # Kubernetes
    "kubernetes-no-connection": (lambda g: g.other(kubernetes_conn_id="nowhere"), "there is no connection nowhere"),
    "kubernetes-context": (
        lambda g: g.kubernetes(lambda config: config.update({"current-context": "other"})),
        "lacks what the Kubernetes connection names|other",
    ),
    "kubernetes-no-kubeconfig": (
        lambda g: g.other(kubernetes_conn_id=g.connections.define("kubernetes", kube_config_path="/no/such/file")),
        "/no/such/file|kube-config",
    ),
    "kubernetes-token": (lambda g: g.kubernetes(lambda config: set_user(config, token="a")), "refused the token"),
    "kubernetes-host": (
        lambda g: g.kubernetes(lambda config: set_cluster(config, server="https://no-such-host.invalid")),
        "the host name of the Kubernetes API is unknown",
    ),
    "kubernetes-port": (
        lambda g: g.kubernetes(lambda config: set_cluster(config, server="https://127.0.0.1:9")),
        "the Kubernetes API does not answer",
    ),
    "kubernetes-authority": (
        lambda g: g.kubernetes(lambda config: set_cluster(config, **{"certificate-authority-data": CERTIFICATE})),
        "the certificate authority of the Kubernetes connection cannot be read",
    ),
    "kubernetes-namespace": (lambda g: g.kubernetes(namespace="nowhere"), "there is no namespace nowhere"),
    "kubernetes-cluster": (lambda g: g.kubernetes(cluster="other"), "there is no SlurmCluster other|other"),
    "rbac-exec": (
        lambda g: g.other(kubernetes_conn_id=g.connections.viewer()),
        "for exec, the rights to (get|create) pods/exec",
    ),
    "rbac-one-right": (one_right_less, f"for pod-events, the rights to list events in {NAMESPACE}$"),
    # Nebius
    "nebius-no-connection": (
        lambda g: g.examine("nowhere", nebius_conn_id="nebius_nowhere"), "there is no connection nebius_nowhere"
    ),
    "nebius-host": (lambda g: g.nebius(host="nowhere.invalid"), "nowhere.invalid"),
    "nebius-port": (lambda g: g.nebius(port=1), "onnection refused"),
    "nebius-tls": (lambda g: g.nebius(insecure=False), "could not read own profile"),
    "nebius-address": (lambda g: g.nebius(host="https://api.nebius.cloud"), "Nebius speaks gRPC|the host is https"),
    "nebius-token": (lambda g: g.nebius(password="an-old-token"), "Nebius refused the credentials"),
    "nebius-no-credentials": (lambda g: g.nebius(password=None), "has no token, and neither has the environment"),
    "nebius-key-that-is-none": (
        lambda g: g.nebius(password=None, private_key='{"a": "b"}'), "no RSA key of a service account"
    ),
    "nebius-key-without-ids": (
        lambda g: g.nebius(password=None, private_key="-----BEGIN PRIVATE KEY-----"), "does not say whose it is"
    ),
    "nebius-no-credentials-file": (
        lambda g: g.nebius(password=None, credentials_file="/no/such/file"), "credentials_file cannot be read"
    ),
    "nebius-block": (lambda g: g.nebius("capacityblockgroup-e00none"), "there is no capacity block"),
    "nebius-lease-rights": (no_lease_rights, "for leases, the rights to create leases"),
    # This machine
    "no-extra-kubernetes": (missing_extra("kubernetes"), "the packages for kubernetes are not installed"),
    "no-extra-rest": (missing_extra("rest"), "the packages for rest are not installed"),
    "no-extra-nebius": (missing_extra("nebius"), "the packages for nebius are not installed"),
    "no-scheduler": (told_by_airflow, "no scheduler is alive"),
    "no-triggerer": (told_by_airflow, "no triggerer is alive"),
}  # fmt: skip


def test_nothing_is_wrong_with_what_works(bench: Bench) -> None:
    verdicts = bench.ssh(kubernetes_conn_id="kubernetes_default")
    assert [str(one) for one in verdicts if one.state == "wrong"] == []
    assert {one.subject for one in verdicts} >= {"slurm", "clock", "accounting", "submission", "files", "rbac"}


@pytest.mark.parametrize("planted", FAULTS)
def test_a_planted_fault_is_named_with_its_remedy(planted: str, bench: Bench) -> None:
    plant, named = FAULTS[planted]
    verdicts = plant(bench)
    found = [one for one in verdicts if one.state != "ok" and re.search(named, one.said)]
    assert found, "\n".join(map(str, verdicts))
    assert all(one.remedy for one in found)


def test_a_slurmctld_that_hangs_is_not_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged, "__defaults__", (2.0,))
    bench.cluster.fault("slurmctld-hung")
    [found] = [one for one in bench.ssh() if one.subject == "slurmctld"]
    assert (found.state, found.said) == ("wrong", "no answer within 2 s")
    assert "`scontrol ping`" in found.remedy


def test_an_account_without_rights_is_told_of_each_feature(bench: Bench) -> None:
    verdicts = bench.account({}, feature=list(RIGHTS))
    for feature in RIGHTS:
        [found] = [one for one in verdicts if f"for {feature}, the rights to" in one.said]
        assert found.state == "wrong"
        assert f"docs/rbac/{feature}.yaml" in found.remedy


def test_there_are_fifty_of_them() -> None:
    assert len(FAULTS) >= 50
