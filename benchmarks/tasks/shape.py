"""What the DAGs of all ways have in common."""

from __future__ import annotations

TASKS_PER_RUN = 25
TASK_IDS = [f"job_{number}" for number in range(TASKS_PER_RUN)]
COMMAND = "true"
#: Seconds that tasks without a job wait, until the others do.
WAIT = 60.0
#: By this accounting's jobs are found again, whoever has submitted them.
JOB_NAME = "{{ ti.task_id }}.{{ run_id }}"
