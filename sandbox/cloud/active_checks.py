"""The ActiveChecks that a new sandbox has: some of those that Soperator ships, with scripts that take a second."""

from __future__ import annotations

from typing import Any

from sandbox.settings import CLUSTER

#: What a job of these checks does: it looks for the GPUs that Slurm has given it.
_SCRIPT = """\
#!/bin/bash
#SBATCH --time=5
{options}
echo "$SLURM_JOB_NAME on $SLURMD_NODENAME: GPU ${{CUDA_VISIBLE_DEVICES:-none}}"
sleep 1
"""
#: One without jobs in Slurm that each line has: with 5.0, ssh-check has gone.
WITHOUT_JOBS = "create-user-soperatorchecks"
_NODE_PROBLEM = {"drainSlurmNode": {"drainReasonPrefix": "[node_problem]"}}


def shipped(soperator: str) -> list[dict[str, Any]]:
    """Those of a Soperator line. None has run yet, and none runs by itself."""
    user = _check(WITHOUT_JOBS, "k8sJob", k8sJobSpec={"jobContainer": {"image": "sandbox", "command": ["true"]}})
    if soperator == "4.1":
        return [
            user,
            slurm_check("all-reduce-perf-nccl-with-ib", _NODE_PROBLEM),
            slurm_check("gpu-fryer", _NODE_PROBLEM),
            slurm_check("ib-gpu-perf", {"commentSlurmNode": {"commentPrefix": "[node_problem]"}}),
            _extensive_check(),
        ]
    return [user, slurm_check("dcgmi-diag-r3", _NODE_PROBLEM), slurm_check("gpu-checks", _NODE_PROBLEM)]


def slurm_check(name: str, reactions: dict[str, Any]) -> dict[str, Any]:
    """One that submits a job for each worker, with a GPU."""
    script = _SCRIPT.format(options="#SBATCH --gpus-per-node=1")
    return _check(
        name,
        "slurmJob",
        slurmJobSpec={"eachWorkerJobs": True, "sbatchScript": script},
        failureReactions=reactions,
    )


def _extensive_check() -> dict[str, Any]:
    """The one that a suspicious node is tested with: alone on it, in the reservation that the run is for."""
    over: dict[str, Any] = {"removeReservation": {"prefix": "suspicious-node"}}
    return _check(
        "extensive-check",
        "slurmJob",
        slurmJobSpec={"sbatchScript": _SCRIPT.format(options="#SBATCH --exclusive --nodes=1 --gpus-per-node=1")},
        successReactions=over,
        failureReactions={"drainSlurmNode": {"drainReasonPrefix": "[hardware_problem]"}, **over},
    )


def _check(name: str, type_: str, **spec: Any) -> dict[str, Any]:
    common = {"name": name, "slurmClusterRefName": CLUSTER, "checkType": type_, "runAfterCreation": False}
    return {"metadata": {"name": name}, "spec": {**common, "suspend": True, "schedule": "0 0 * * *", **spec}}
