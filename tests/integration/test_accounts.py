"""Accounts, QOS and partitions that a cluster does not let a user have, on one that looks after them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_soperator.client.sync import SlurmClient
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.errors import SubmitRefused, TogetherRefused
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from sandbox.lifecycle import Sandbox
from sandbox.settings import Settings
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.sandboxes import kept_up

pytestmark = pytest.mark.oldest_slurm

ASSOCIATIONS = (
    "add account vision",
    "add account shared",
    "add qos fast",
    "add qos slow",
    "add user alice account=vision qos=normal,slow",
    "add user alice account=shared qos=normal,fast",
    "modify user alice set defaultaccount=vision",
    "delete user alice account=research",
    # Another cluster of the same slurmdbd, which comes before this one.
    "add cluster elsewhere",
    "add account nlp cluster=elsewhere",
    "add user alice account=nlp cluster=elsewhere",
)
MAY = "user alice may use"


@pytest.fixture(scope="module")
def strict_sandbox(sandbox: Sandbox) -> Iterator[Sandbox]:
    """One that takes a job only from those whom accounting knows."""
    name = f"strict-{sandbox.settings.name}"[:32].rstrip("-")
    enforced = ["AccountingStorageEnforce=associations,limits,qos"]
    own = sandbox.settings
    with kept_up(Settings(name=name, slurm=own.slurm, root=own.root, workers=1, static=1, slurm_conf=enforced)) as made:
        cluster = Cluster(made)
        for words in ASSOCIATIONS:
            cluster.run("sacctmgr", "-i", *words.split())
        yield made


@pytest.fixture(params=["login", "rest"])
def alice(
    request: pytest.FixtureRequest, strict_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmClient]:
    """Slurm as alice is to find it, over both kinds of ways."""
    connections = Connections(Cluster(strict_sandbox), monkeypatch)
    if request.param == "rest":
        uri = connections.cluster.access["airflow_connections"]["AIRFLOW_CONN_SOPERATOR_REST"]
        connections.add("rest_of_alice", uri.replace("root@", "alice@"))
        hook = SlurmHook("rest_of_alice")
    else:
        hook = connections.login_node(login="alice")
    with hook.client() as client:
        yield client


def key(name: str) -> SubmissionKey:
    return SubmissionKey.derive("accounts", "run", name, -1, "1")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"account": "visoin"}, f"account 'visoin': did you mean 'vision'? {MAY} vision (default), shared"),
        ({"account": "research"}, f"account 'research': {MAY}"),
        ({"account": "nlp"}, f"account 'nlp': {MAY} vision (default), shared"),
        ({"qos": "solw"}, f"qos 'solw': did you mean 'slow'? {MAY} normal, slow with account vision"),
        ({"qos": "fast"}, f"qos fast needs account shared: {MAY} normal, slow with account vision"),
        ({"partition": "mian"}, "partition 'mian': did you mean 'main'? the partitions are main"),
    ],
    ids=str,
)
def test_a_refusal_names_what_may_be_used(alice: SlurmClient, asked: dict[str, str], says: str) -> None:
    job = BatchJob(command="true", chdir="/tmp", **asked)  # type: ignore[arg-type]
    with pytest.raises(SubmitRefused) as refused:
        alice.submit(job, key(str(asked)))
    assert says in str(refused.value)


# Over slurmrestd 24.11 alice is given the id of a job that slurmctld does not know a moment later.
@pytest.mark.parametrize("alice", ["login"], indirect=True)
def test_a_refusal_names_what_the_nodes_have(alice: SlurmClient) -> None:
    with pytest.raises(SubmitRefused, match=r"the cluster has .* nodes, and at most 8 GPUs"):
        alice.submit(BatchJob(command="true", chdir="/tmp", gpus_per_node=99), key("gpus"))


def test_one_of_several_that_belong_together(alice: SlurmClient) -> None:
    jobs = [
        BatchJob(command="true", chdir="/tmp", name=key(f"{account} {id(alice)}").name(account), account=account)
        for account in ("vision", "shraed")
    ]
    with pytest.raises(TogetherRefused, match="'shraed': did you mean 'shared'"):
        alice.submit_together(jobs)
