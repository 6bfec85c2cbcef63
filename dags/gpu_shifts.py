"""Every night GPUs train, and every day some of them serve: shifts of one capacity block, on a schedule.

A run starts half an hour before each handover. From then on Slurm starts no job on the nodes to release that would
run past the handover. The nodes are released one by one, and the GPUs of each go to the other target at once. No job is
killed. Triggered by hand, the DAG moves what its form says, which holds until the next handover. It is paused at first,
and unpausing it moves nothing before the next handover.
"""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.operators.capacity_dag import capacity_dag

# Ephemeral Slurm nodes. Half of the sandbox's, as the other examples need some, too.
training = SlurmNodesTarget(
    name="training",
    nodes="worker-[0-3]",
    # The node groups of the nodes' machines.
    node_groups=("mk8snodegroup-e00training",),
    slurm_conn_id="soperator_default",
)
# The node group that the inference service runs on. The sandbox also has mk8snodegroup-e00remote, in a second
# Kubernetes cluster. `nebius mk8s node-group list --parent-id …` lists yours.
inference = NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00inference")

schedule = CapacitySchedule(
    timezone="Europe/Amsterdam",
    windows=[
        Window("mon-fri 20:00 - 08:00", {"training": 4, "inference": 0}, name="night"),
        Window("sat 08:00 - mon 08:00", {"training": 3, "inference": 1}, name="weekend"),
    ],
    otherwise={"training": 1, "inference": 3},
    # Dates with another allocation.
    exceptions={"2026-12-24/2026-12-26": {"training": 2, "inference": 2}},
    gpus_per_unit={"training": 8, "inference": 8},
    # The GPUs of the block that these two may use.
    limit=32,
    lead="30m",
)

dag = capacity_dag(
    "gpu_shifts",
    schedule,
    [training, inference],
    # The capacity block of both; `nebius capacity capacity-block-group list` lists yours.
    block="capacityblockgroup-e00sandbox",
    # With True a person must approve each plan, on Airflow's page Required Actions.
    approve=False,
    shift_args={
        # The triggerer carries out the shift, so it holds no Airflow worker while jobs end.
        "deferrable": True,
        # How long a machine needs from one target to the other: nodes leave this early. In the sandbox
        # it takes seconds; the metrics of your first shifts show how long yours take.
        "transfer": timedelta(minutes=5),
        # Nodes leave once the jobs on them have ended. With "force" and force_after=, jobs that still run that long
        # after the handover get a signal and are requeued.
        "mode": "asap",
        # Seconds between polls of Slurm and the cloud.
        "poll_interval": 5,
    },
    # A retry continues the shift of the previous try, for example after an Airflow process has died.
    default_args={"retries": 1, "retry_delay": timedelta(seconds=30)},
    description=__doc__.splitlines()[0],
    doc_md=__doc__,
    tags=["soperator", "example"],
)
