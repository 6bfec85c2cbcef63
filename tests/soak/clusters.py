"""A cluster from nothing to its end by the example DAGs: made, checked, upgraded, healed, compared and destroyed.

It begins with Soperator's operator alone. What happens in between comes in any order, and the DAG that heals is on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from typing import Any

from sandbox import faults
from sandbox.airflow.beside import DAGS
from sandbox.cloud import active_checks, charts
from sandbox.settings import CLUSTER, RELEASES
from tests.airflow.stack import Dag, Run, Stack
from tests.integration.cluster import Cluster
from tests.soak import worlds
from tests.soak.blows import Blows
from tests.soak.rounds import Round

WORKERS = [f"worker-{ordinal}" for ordinal in range(4)]
ALL = [*WORKERS, "worker-cpu-0", "worker-cpu-1"]
#: Charts of an installation that makes its SlurmCluster and NodeSets otherwise.
CHARTS = ("helm-slurm-cluster-storage", "helm-soperator-backup-config", "helm-soperator-activechecks")
#: A check of the user's own; Soperator drains the nodes on which it fails, for their machines to be replaced.
CHECK = "fits-the-model"
#: In place of the recipe, and of what a cluster has that is made by it.
DESCRIBED = """
from airflow_provider_soperator.provisioning import ClusterSpec, Installation, KubernetesObjects, NodeSet

source = KubernetesObjects("kubernetes_default", installation=Installation(scripts=None))


def described(release, size=4, name="soperator"):
    gpus = {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb"}
    return ClusterSpec(
        name=name,
        operator_version=release,
        nodesets=(
            NodeSet("worker", size, ephemeral=True, initial=4, **gpus),
            NodeSet("worker-cpu", 2, platform="cpu-d3", preset="16vcpu-64gb"),
        ),
        login_keys=(KEY,),
        accounting=True,
        rest=True,
    )
"""
PROVISION = """\
from described import described, source as recipe

spec = described("{{ params.version }}", "{{ params.size }}", "{{ params.name }}")
"""
CHANGE = """\
        from airflow_provider_soperator.operators.cluster import ProvisionClusterOperator
        from described import described, source

        ProvisionClusterOperator(task_id="make_it", spec=described("{{ params.release }}"), source=source)
"""
COMPARE = """
from airflow.sdk import DAG, AssetAlias
from airflow_provider_soperator.operators.cluster import CompareClusterOperator
from described import described, source

with DAG("compare_cluster", schedule=None, params={"version": ""}):
    spec = described("{{ params.version }}")
    CompareClusterOperator(task_id="compare", spec=spec, source=source, outlets=[AssetAlias("drift")])
"""

MADE = "clusters that came of nothing and ran a job on 8 GPUs, as approved"
WELL = "nights in which all was well, and nobody was told otherwise"
UPGRADED = "upgrades in a window, after which Pods are of the new release, and until which no job of others ran"
HEALED = "sick nodes that came back on another machine after a trial, and no other node or job was touched"
ASKED = "checks that failed everywhere: a person was asked, and not a machine was replaced"
COMPARED = "differences that were told, by result and event, mended, and gone"
DESTROYED = "clusters that were destroyed, of which nothing runs"


def play(round_: Round) -> None:
    with worlds.airflow(round_, bare=True, node_replacement="on") as (stack, cluster):
        life = Life(round_, stack, cluster)
        life.is_made()
        life.has_a_good_night()
        episodes = [life.is_upgraded, life.has_a_sick_node, life.fails_a_check_everywhere, life.drifts]
        round_.dice("episodes").shuffle(episodes)
        for episode in episodes:
            round_.say(f"  the cluster {episode.__name__.replace('_', ' ')}")
            episode()
            life.is_well()
        life.is_destroyed()


class Life:
    """A cluster, and the DAGs by which all happens to it."""

    def __init__(self, round_: Round, stack: Stack, cluster: Cluster) -> None:
        self._round, self._stack, self._cluster = round_, stack, cluster
        self._dice = round_.dice("life")
        self._release = RELEASES[cluster.settings.soperator]
        self._form = {"name": CLUSTER, "size": len(WORKERS)}
        self._install()
        source = (DAGS / "provision_cluster.py").read_text()
        key = next(word for word in source.split('"') if word.startswith("ssh-ed25519"))
        (stack.dags / "described.py").write_text(DESCRIBED.replace("KEY", repr(key)))
        source = _with(source, "recipe = ", "# Both must exist", PROVISION)
        self._provision = stack.add_source("provision_cluster", source)
        self._night = stack.add_file(DAGS / "nightly_health.py")
        source = (DAGS / "upgrade_window.py").read_text()
        source = _with(source, "        @task\n        def make_it", "    @task_group\n    def verify", CHANGE)
        self._upgrade = stack.add_source("upgrade_window", source)
        self._switch(self._upgrade)
        self._compare = stack.add_source("compare_cluster", COMPARE)
        self._heal = stack.add_file(DAGS / "replace_sick_nodes.py")

    def is_made(self) -> None:
        assert not {"slurmctld", "sshd"} & self._cluster.sandbox.init.processes().keys()
        run = self._provision.trigger(**self._form, version=self._release)
        asked = run.answer("agree", "Approve")
        assert asked["subject"] == f"Cluster {CLUSTER}: 3 to create", asked
        run.wait("verify", "success", timeout=600)
        run.wait_log("provision", "worker: 8 of 8 GPUs")
        assert run.xcom("provision")["tried"].keys() == {"worker", "worker-cpu"}
        assert self._cluster.run("srun", "--gres=gpu:8", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").count(",") == 7
        self._apply(_check())
        # Its watcher begins when Airflow reads the file next.
        self._switch(self._heal)
        (self._stack.dags / "replace_sick_nodes.py").touch()
        self._round.checked[MADE] += 1

    def has_a_good_night(self) -> None:
        run = self._night.trigger(checks=[CHECK])
        states = run.wait_all(300)
        assert states == {**dict.fromkeys(states, "success"), "tell": "skipped"}, states
        report = run.xcom("report")
        assert (report["ill"], report["failing"], report["checks"][0]["state"]) == ({}, [], "Complete"), report
        assert report["checks"][0]["nodes"].keys() == set(WORKERS)
        self._round.checked[WELL] += 1

    def is_upgraded(self) -> None:
        major = self._release.rpartition(".")[0]
        self._release = f"{major}.{int(self._release.rpartition('.')[2]) + 1}"
        self._install()
        run = self._upgrade.trigger(nodes="worker-[0-3],worker-cpu-[0-1]", release=self._release)
        run.wait("reserve", "success", timeout=300)
        # It asks for as long as no hole before the window has.
        job = self._cluster.sbatch("--nodelist=worker-cpu-0", "--time=7-0", wrap="true")
        self._strike(run)
        states = run.wait_all(900)
        assert set(states.values()) == {"success"}, states
        assert "are open to all again" in run.wait_log("tell", "are open to all again")
        self._cluster.wait_job(job, "COMPLETED")
        reopened = run.task("reopen")["start_date"]
        started = self._cluster.run("sacct", "-nXj", job, "--format=start%30").strip()
        since = self._cluster.run("date", "+%Y-%m-%dT%H:%M:%S", "-d", reopened).strip()
        assert started >= since[:19], f"job {job} ran at {started}, before {since}"
        for name in ALL:
            pod = self._cluster.pod(name)
            tags = {one.image.rpartition(":")[2].partition("-")[0] for one in pod.status.container_statuses}
            assert tags == {self._release}, f"{name}: {tags}"
        self._round.checked[UPGRADED] += 1

    def has_a_sick_node(self) -> None:
        sick, other = self._dice.sample(WORKERS, 2)
        job = self._cluster.held_job(f"--nodelist={other}", "--gres=gpu:8")
        self._cluster.wait_job(job, "RUNNING")
        machines, known = self._machines(), len(self._heal.runs())
        faults.bring(
            self._cluster.sandbox,
            "gpu-metric",
            argparse.Namespace(node=sick, metric="DCGM_FI_DEV_XID_ERRORS", value=79.0, gpu=self._dice.randrange(8)),
        )
        run = self._healing(known)
        run.wait("reserve", "success", timeout=120)
        self._strike(run)
        states = run.wait_all(600)
        assert states["release"] == "success", states
        assert run.xcom("replace").keys() == {sick}
        assert run.xcom("trial")["nodes"] == sick
        now = self._machines()
        assert {name for name in ALL if now[name] != machines[name]} == {sick}
        self._cluster.let_go(job)
        self._cluster.wait_job(job, "COMPLETED")
        assert self._cluster.job(job)["restart_cnt"] == 0
        self._round.checked[HEALED] += 1

    def fails_a_check_everywhere(self) -> None:
        # As the chart has it: otherwise Soperator itself would replace all of them at once.
        self._deploy("--enable-node-replacement=false")
        faults.bring(self._cluster.sandbox, "check-fails", argparse.Namespace(check=CHECK, node=""))
        machines, known = self._machines(), len(self._heal.runs())
        night = self._night.trigger(checks=[CHECK])
        night.wait("tell", "success", timeout=300)
        assert set(night.xcom("report")["failing"]) == set(WORKERS)
        run = self._healing(known)
        asked = run.answer("ask", "Reject")
        assert "4 of 6 nodes" in asked["subject"], asked
        states = run.wait_all(120)
        assert {states[name] for name in ("reserve", "replace", "power_down", "trial")} == {"skipped"}, states
        # Whom the watcher tells of it keeps a look later. Sooner, its run may be yet to come, and all seem well to it.
        self._stack.wait("the watcher keeps whom it has told of", lambda: any(self._stack.memories("node_falls_ill")))
        self._stack.wait("all of whom the watcher and the night have told is refused", lambda: self._refuse(known))
        assert self._machines() == machines
        assert "No reservations" in self._cluster.run("scontrol", "show", "reservation")
        faults.bring(self._cluster.sandbox, "clear", argparse.Namespace())
        self._cluster.run("scontrol", "update", "nodename=worker-[0-3]", "state=undrain")
        self._deploy("--enable-node-replacement=true")
        self._round.checked[ASKED] += 1

    def drifts(self) -> None:
        assert self._compared() == {}
        self._cluster.kubectl("patch", "nodeset", "worker-cpu", "--type=merge", '--patch={"spec": {"replicas": 1}}')
        self._cluster.wait_known("worker-cpu-1", known=False)
        events = self._events()
        assert self._compared() == {"NodeSet/worker-cpu": "update"}
        self._stack.wait("there is an event of it", lambda: self._events() == events + 1, 60)
        self._cluster.kubectl("scale", "nodeset", "worker-cpu", "--replicas=2")
        self._cluster.wait_known("worker-cpu-1", known=True)
        assert self._compared() == {}
        self._round.checked[COMPARED] += 1

    def is_well(self) -> None:
        """Nothing of an episode is left, and nothing of it goes on."""
        for name in ALL:
            self._cluster.wait_node(name, has={"IDLE"}, lacks={"DRAIN", "RESERVED", "POWERED_DOWN", "DOWN"})
        over = {"success", "failed"}
        self._stack.wait("no healing goes on", lambda: {run.state() for run in self._heal.runs()} <= over)
        assert "No reservations" in self._cluster.run("scontrol", "show", "reservation")
        assert not self._cluster.active_jobs()
        # It tells only of a node that it has seen healthy in between.
        self._stack.wait("the watcher has seen all well", lambda: not any(self._stack.memories("node_falls_ill")))

    def is_destroyed(self) -> None:
        self._switch(self._heal, is_on=False)
        form, destroy = {**self._form, "version": self._release}, Dag(self._stack, "destroy_cluster")
        self._switch(destroy)
        run = destroy.trigger(**form, confirm=CLUSTER)
        run.wait("destroy", "success", timeout=240)
        init = self._cluster.sandbox.init
        self._cluster.wait("all has ended", lambda: init.processes().keys() == {"cloud", "postgres"})
        self._round.counts["runs of the DAG that heals"] += len(self._heal.runs())
        self._round.checked[DESTROYED] += 1

    # How it is done

    def _switch(self, dag: Dag, *, is_on: bool = True) -> None:
        """What takes nodes or the cluster from their users has to be switched on first."""
        self._stack.call("PATCH", f"/dags/{dag.dag_id}", json={"is_paused": not is_on})

    def _compared(self) -> dict[str, str]:
        run = self._compare.trigger(version=self._release)
        run.wait("compare", "success", timeout=240)
        changes: dict[str, str] = run.xcom("compare")["changes"]
        return changes

    def _events(self) -> int:
        return int(self._stack.call("GET", "/assets/events", params={"name_pattern": "drift"})["total_entries"])

    def _healing(self, known: int) -> Run:
        """The run of the DAG that heals which has begun since."""
        return self._stack.wait("a healing has begun", lambda: self._heal.runs()[known:], 240)[0]

    def _strike(self, run: Run) -> None:
        """Mostly, something dies that the run depends on."""
        blows = Blows(self._round, self._stack, self._cluster, run)
        if blow := self._dice.choice((None, blows.kill_triggerer, blows.restart_sshd, blows.cut_connections)):
            self._round.counts[blow.__name__] += blow()

    def _refuse(self, known: int) -> bool:
        """Answer what is asked in the runs since; whether all are over."""
        runs = self._heal.runs()[known:]
        for run in runs:
            if run.task("ask")["state"] == "awaiting_input":
                run.answer("ask", "Reject")
        return all(run.state() in ("success", "failed") for run in runs)

    def _machines(self) -> dict[str, str | None]:
        return {name: self._cluster.machine_of(name) for name in ALL}

    def _install(self) -> None:
        """The operator, of the release, and all that is installed beside a cluster."""
        settings = self._cluster.settings
        self._apply(*(one for chart in CHARTS for one in charts.render(chart, self._release, {}, settings)))
        self._deploy("--enable-node-replacement=true")

    def _deploy(self, *words: str) -> None:
        labels = {"app.kubernetes.io/part-of": "slurm-operator", "control-plane": "soperator-manager"}
        image = f"cr.nebius.cloud/soperator/slurm-operator:{self._release}"
        container = {"name": "manager", "image": image, "args": words}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        metadata = {"name": "soperator-manager", "labels": labels}
        self._apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})

    def _apply(self, *objects: Any) -> None:
        said = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        command = ["kubectl", f"--kubeconfig={self._cluster.paths.kubeconfig}", "apply", "--server-side", "-f", "-"]
        subprocess.run(command, input=said, text=True, check=True, capture_output=True, timeout=60)


def _check() -> dict[str, Any]:
    reaction = {"drainSlurmNode": {"drainReasonPrefix": "[hardware_problem]"}}
    kind = {"apiVersion": "slurm.nebius.ai/v1alpha1", "kind": "ActiveCheck"}
    return {**kind, **active_checks.slurm_check(CHECK, reaction)}


def _with(source: str, first: str, next_: str, text: str) -> str:
    """The source with a text in place of what is between two others."""
    before, _, rest = source.partition(f"\n{first}")
    _, found, after = rest.partition(f"\n{next_}")
    assert found, f"{next_!r} is not there"
    return f"{before}\n{text}\n{next_}{after}"
