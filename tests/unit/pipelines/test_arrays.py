"""What is known of a stage's array before its job is made."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.pipelines.stages import array_of

HEAD = "#!/bin/bash\n#SBATCH --array=1-3\n"


@pytest.mark.parametrize(
    ("options", "indices"),
    [
        ({"command": "true"}, []),
        ({"command": "true", "array": "0-3"}, [0, 1, 2, 3]),
        ({"command": "true", "array": "1-9:4%2"}, [1, 5, 9]),
        ({"command": "true", "array": range(2)}, [0, 1]),
        ({"command": "true", "array": [3, 1]}, [1, 3]),
        ({"script": f"{HEAD}true\n"}, [1, 2, 3]),
        ({"script": "#!/bin/bash\ntrue\n"}, []),
        # What is said to the operator takes the place of what the script says.
        ({"script": f"{HEAD}true\n", "array": "7"}, [7]),
        ({"remote_script": "/root/job.sh", "array": "7"}, [7]),
    ],
)
def test_known(options: dict[str, Any], indices: list[int]) -> None:
    assert array_of(SbatchOperator(task_id="a", **options)) == indices


@pytest.mark.parametrize(
    "options",
    [
        {"command": "true", "array": "0-{{ params.last }}"},
        {"command": "true", "array": "{% if params.all %}0-9{% else %}0{% endif %}"},
        # Files are read later, be they here or there.
        {"script": "train.sbatch"},
        {"remote_script": "/root/job.sh"},
        {"script": "#!/bin/bash\n#SBATCH --array={{ params.array }}\ntrue\n"},
        # Mistakes are told by those who check the job.
        {"command": "true", "array": "3-1"},
        {"command": "true", "array": "many"},
        {"command": "true", "array": 3},
        {"script": "#!/bin/bash\n#SBATCH --array=x\ntrue\n"},
        {"script": "#!/bin/bash\n#SBATCH --no-such-option 'open\ntrue\n"},
    ],
)
def test_not_known(options: dict[str, Any]) -> None:
    assert array_of(SbatchOperator(task_id="a", **options)) is None


def test_of_a_mapped_stage_it_is_not_known() -> None:
    assert array_of(SbatchOperator.partial(task_id="a", array="0-3").expand(command=["true", "false"])) is None
