"""Every night GPUs train, and every day some of them serve: shifts of one capacity block, on a schedule.

Half an hour before each handover a run begins. From then on Slurm starts no job on the nodes that are to go which would
run past it; at the handover they are given up one by one, and what each of them gives back goes to the other side at
once. No job dies for it. Started by hand, the DAG moves what its form says; the next handover puts the schedule into
force again.
"""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.operators.capacity_dag import capacity_dag

# Ephemeral nodes of Slurm. Half of those that the sandbox has: the other examples need some, too.
training = SlurmNodesTarget(
    name="training",
    nodes="worker-[0-3]",
    # Those that the nodes' machines are of.
    node_groups=("mk8snodegroup-e00training",),
    slurm_conn_id="soperator_default",
)
# The node group that the inference service runs on. In a Kubernetes cluster of its own it is
# mk8snodegroup-e00remote in the sandbox; `nebius mk8s node-group list --parent-id …` shows yours.
inference = NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00inference")

schedule = CapacitySchedule(
    timezone="Europe/Amsterdam",
    windows=[
        Window("mon-fri 20:00 - 08:00", {"training": 4, "inference": 0}, name="night"),
        Window("sat 08:00 - mon 08:00", {"training": 3, "inference": 1}, name="weekend"),
    ],
    otherwise={"training": 1, "inference": 3},
    # Dates have the allocation of a window, or one of their own.
    exceptions={"2026-12-24/2026-12-26": {"training": 2, "inference": 2}},
    gpus={"training": 8, "inference": 8},
    # GPUs of the block that are for these two.
    limit=32,
    lead="30m",
)

dag = capacity_dag(
    "gpu_shifts",
    schedule,
    [training, inference],
    # The capacity block that both take their GPUs from; `nebius capacity capacity-block-group list` shows yours.
    block="capacityblockgroup-e00sandbox",
    # With True somebody has to agree to each plan, on Airflow's page of required actions.
    approve=False,
    shift={
        # The triggerer carries the shift out: however long jobs take to end, they hold no worker of Airflow's.
        "deferrable": True,
        # A machine needs so long from one side to the other: nodes leave early enough to be there in time. The
        # sandbox's take seconds; see how long yours take by the figures of the first shifts.
        "transfer": timedelta(minutes=5),
        # Nodes go once the jobs on them have ended. With "force" and force_after= jobs that are still there so long
        # after the handover are warned, and requeued.
        "hurry": "asap",
        # Seconds between two looks at Slurm and the cloud.
        "poll_interval": 5,
    },
    # A try that finds the shift of the one before under way, as when a process of Airflow's has died, goes on with it.
    default_args={"retries": 1, "retry_delay": timedelta(seconds=30)},
    # Switched on, it puts into force at once what the schedule says.
    is_paused_upon_creation=True,
    doc_md=__doc__,
    tags=["soperator", "example"],
)
