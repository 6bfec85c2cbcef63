"""What goes wrong around a shift for a while, and passes: of Nebius, of Kubernetes, of Slurm, of the block itself."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.integration.cluster import Cluster
from tests.integration.fire import kill_accounting, stop_controller

Bring = Callable[[Cluster, random.Random], None]


@dataclass(frozen=True)
class Trouble:
    """Something that is wrong from a moment on, for so long."""

    name: str
    bring: Bring
    #: Seconds after the beginning of a process, and until all is well again.
    at: float
    lasts: float
    dice: random.Random

    def pass_by(self, cluster: Cluster) -> None:
        time.sleep(self.at)
        self.bring(cluster, self.dice)
        time.sleep(self.lasts)


def draw(dice: random.Random) -> Trouble:
    name = dice.choice(list(TROUBLES))
    return Trouble(name, TROUBLES[name], dice.uniform(0, 2), dice.uniform(0.2, 4), random.Random(dice.random()))


def end(cluster: Cluster) -> None:
    """All that there can be is over."""
    cluster.fault("clear")
    cluster.sandbox.up()


def nebius(effect: str) -> Bring:
    """Some calls of one kind, or of any, come to nothing; ``lost`` are carried out and not answered."""

    def bring(cluster: Cluster, dice: random.Random) -> None:
        calls = ["NodeGroupService/Update"] if effect in ("lost", "conflict") else ["*", "NodeGroupService/*"]
        calls += ["CapacityBlockGroupService/*"] if effect in ("error", "hang") else []
        cluster.fault("api", api="nebius", effect=effect, matching=dice.choice(calls), count=dice.randint(1, 6))

    return bring


def kubernetes(effect: str) -> Bring:
    """Calls for the replicas of inference, and of what powers Slurm's nodes as far as that tries again by itself."""

    def bring(cluster: Cluster, dice: random.Random) -> None:
        calls = ["PATCH deployments/*", "GET deployments/*"]
        calls += ["PUT nodesetpowerstates/*"] if effect == "conflict" else []
        cluster.fault("api", api="kubernetes", effect=effect, matching=dice.choice(calls), count=dice.randint(1, 4))

    return bring


def block_exhausted(cluster: Cluster, dice: random.Random) -> None:
    cluster.fault("block-exhausted", leave=dice.choice((0, 8)))


def block_unknown(cluster: Cluster, dice: random.Random) -> None:
    cluster.fault("block-unknown")


def controller_restarts(cluster: Cluster, dice: random.Random) -> None:
    stop_controller(cluster)


def controller_hangs(cluster: Cluster, dice: random.Random) -> None:
    cluster.fault("slurmctld-hung")


def accounting_dies(cluster: Cluster, dice: random.Random) -> None:
    kill_accounting(cluster)


def connections_break(cluster: Cluster, dice: random.Random) -> None:
    for _ in range(dice.randint(1, 5)):
        cluster.fault("login-cut")


def login_restarts(cluster: Cluster, dice: random.Random) -> None:
    cluster.sandbox.init.signal("sshd", signal.SIGKILL)


TROUBLES: dict[str, Bring] = {
    **{f"nebius: {effect}": nebius(effect) for effect in ("error", "hang", "conflict", "lost")},
    **{f"kubernetes: {effect}": kubernetes(effect) for effect in ("error", "hang", "conflict")},
    "block exhausted": block_exhausted,
    "block usage unknown": block_unknown,
    "slurmctld restarts": controller_restarts,
    "slurmctld hangs": controller_hangs,
    "slurmdbd dies": accounting_dies,
    "connections break": connections_break,
    "sshd restarts": login_restarts,
}
