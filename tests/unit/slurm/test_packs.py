"""Equal jobs as one array: what each element runs, reads and writes is what its job would."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.slurm import packs, sbatch_arguments
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, expand_filename
from airflow_provider_soperator.slurm.packs import Pack
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, output_path, readable_name


def mapped(index: int, **fields: Any) -> BatchJob:
    """The job of a mapped task."""
    instance = ("train", "manual__2026-11-21", "fit", index)
    key = SubmissionKey.derive("train", "run", "fit", index // 1000, 1, element=index % 1000)
    body = {} if "script" in fields else {"command": "true"}
    fields = {**body, "output": f"{output_path(*instance)}-%j.out", **fields}
    return BatchJob(name=key.name(readable_name(*instance)), **fields)


def made(*jobs: BatchJob) -> list[Pack]:
    return packs.packs(map(packs.packable_of, jobs))


ODD = [
    "",
    "it's",
    '"quoted" $HOME `id` $(id)',
    "back\\slash\\",
    "two\nlines\n",
    "trains 训练 é \x81\x88",
    "-n",
    "*",
    " a  b ",
]
#: They print what they are given, and a text of their own.
BASH = """#!/bin/bash -u
printf "%s|" "$0" "$@" "$PIECE" "${{X-none}}" >"$OUT"
cat <<'END' >>"$OUT"
{}
END
"""
PYTHON = """#!/usr/bin/env python3
import os, sys
open(os.environ["OUT"], "w").write(repr((sys.argv[1:], {!r}, os.environ.get("X"))))
"""


def run(shell: str, job: BatchJob, element: int, folder: Path, env: dict[str, str]) -> str:
    """What an element of an array writes, or a job on its own, run as slurmd would."""
    script = folder / "slurm_script"
    script.write_text(sbatch_arguments.body(job) or "")
    script.chmod(0o755)
    out = folder / "out"
    out.unlink(missing_ok=True)
    first = [shell] if (sbatch_arguments.body(job) or "").startswith("#!/bin/sh") else []
    said = {**os.environ, **env, **job.env, "OUT": str(out), "SLURM_ARRAY_TASK_ID": str(element), "PIECE": "env"}
    subprocess.run([*first, str(script), *map(str, job.args)], env=said, check=True, stdin=subprocess.DEVNULL)
    return out.read_text().replace(str(script), "SCRIPT").replace("/dev/fd/9", "SCRIPT")


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize(
    "jobs",
    [
        [mapped(index, script=BASH.format(text)) for index, text in enumerate(ODD)],
        [mapped(index, script=BASH.format("same"), args=[text, "2"]) for index, text in enumerate(ODD)],
        [mapped(index, script=BASH.format("same"), env={"X": text} if text else {}) for index, text in enumerate(ODD)],
        [
            mapped(index, script=PYTHON.format(text), args=[text], env={"X": text})
            for index, text in enumerate(ODD[1:4])
        ],
        [mapped(index, script=BASH.format("_soperator_end\n" * index)) for index in range(3)],
        [mapped(index, script=BASH.format("same"), args=["a"], env={"X": "b"}) for index in range(2)],
    ],
    ids=["bodies", "arguments", "variables", "all of them", "the word at the end", "nothing"],
)
def test_each_element_runs_what_its_job_would(jobs: list[BatchJob], shell: str, tmp_path: Path) -> None:
    [pack] = made(*jobs)
    assert list(pack.places) == list(range(len(jobs)))
    for element, job in enumerate(jobs):
        assert run(shell, pack.job, element, tmp_path, {}) == run(shell, job, element, tmp_path, {})


def test_what_is_common_is_there_once() -> None:
    text = "#!/bin/bash\n" + "# a long script\n" * 2000
    [pack] = made(*(mapped(index, script=f"{text}python train.py --rate 0.{index}\n") for index in range(1000)))
    assert len(pack.job.script or "") < len(text) + 1000 * 40
    # What is equal needs no script around it.
    [pack] = made(mapped(1, script=text), mapped(2, script=text))
    assert pack.job.script == text


def test_scripts_that_would_be_too_large_for_each_element_go_as_several_arrays() -> None:
    jobs = [mapped(index, script=f"#!/bin/sh\n: {index % 10}{'x' * 5000}{index}\n") for index in range(400)]
    found = made(*jobs)
    assert all(len(pack.job.script or "") <= packs.MOST_BYTES for pack in found)
    assert sorted(place for pack in found for place in pack.places.values()) == list(range(400))
    assert len(found) < 20


@pytest.mark.parametrize("indices", [range(3), range(1998, 2000), range(2000, 2003)])
def test_names_and_files_are_those_of_the_tasks(indices: range) -> None:
    jobs = [mapped(index, error=f"airflow/train.1/err{index}") for index in indices]
    [pack] = made(*jobs)
    assert pack.job.name == f"fit.train.manual__2026-11-21{pack.key.suffix}"
    for element, place in pack.places.items():
        # The number of the element is that of a job, too.
        part, alone = Job(id=JobId(7, element), raw_id=31), Job(id=JobId(31), raw_id=31)
        for files in ("output", "error"):
            own = expand_filename(getattr(jobs[place], files), alone)
            assert expand_filename(getattr(pack.job, files), part) == own


@pytest.mark.parametrize("pattern", ["dock-{}", "{}_dock", "dock.{}.2026-11-21", "v2-dock-{}"])
def test_names_of_ones_own_may_have_the_number_anywhere(pattern: str) -> None:
    jobs = [
        job.replace(name=f"{pattern.format(index)}.af-aaaaaaaaaaaa_{index}")
        for index, job in enumerate(map(mapped, range(3, 30)), 3)
    ]
    [pack] = made(*jobs)
    assert len(pack.places) == 27


def test_a_task_of_each_thousand_has_nothing_in_common_with_another() -> None:
    assert made(mapped(5), mapped(1005)) == []


def test_one_file_of_all_stays_one() -> None:
    [pack] = made(*(mapped(index, output="all.out") for index in (1, 2)))
    assert pack.job.output == "all.out"


@pytest.mark.parametrize("path", ["logs/%x-%j.out", "%A_%4a.out", "%x/{}.out", "as\\%x.out", "100%%x.out"])
def test_jobs_whose_files_differ_by_more_than_the_array_or_not_at_all_go_as_one(path: str) -> None:
    [pack] = made(*(mapped(index, output=path.format(index)) for index in (1, 2)))
    assert pack.job.output == path.format("%a")


def test_options_of_a_script_are_those_of_the_array() -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=2 --comment=mine\n#SBATCH --export=NONE,A=b\necho {}\n"
    [pack] = made(*(mapped(index, script=text.format(index)) for index in range(2)))
    assert {"--nodes=2", "--comment=mine", "--export=A"} <= {*pack.job.argv()}
    assert pack.job.env == {"A": "b"}


NAMED = "#!/bin/sh\n#SBATCH --output=%x.out\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"nodes": 1}, {"nodes": 2}),
        ({"array": "0-3"}, {"array": "0-3"}),
        ({"dependency": "singleton"}, {"dependency": "singleton"}),
        ({"mail_type": "END"}, {"mail_type": "END"}),
        ({"script": "#!/bin/sh\n:\n"}, {"script": "#!/bin/bash\n:\n"}),
        # What they do to their job would be done to all.
        *(({"command": does}, {"command": does}) for does in ("scontrol requeue $SLURM_JOB_ID", "/bin/scancel $1")),
        ({"het": [{"nodes": 1}]}, {"het": [{"nodes": 1}]}),
        ({"command": None, "remote_script": "/a.sh"}, {"command": None, "remote_script": "/a.sh"}),
        # They are read before the script begins, or keep the others away from it.
        ({"env": {"SLURM_X": "1"}}, {"env": {"SLURM_X": "2"}}),
        ({"env": {"X": "1"}, "export": "NONE"}, {"env": {"X": "2"}, "export": "NONE"}),
        ({"output": "a.out"}, {"output": "b.out"}),
        # An array has one name and one number.
        *(({field: path}, {field: path}) for field in ("output", "error") for path in ("logs/%x.out", "%3A-%b%%j.out")),
        ({"script": NAMED, "output": None}, {"script": NAMED, "output": None}),
    ],
)
def test_what_is_not_equal_enough_goes_on_its_own(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert made(mapped(1, **one), mapped(2, **other)) == []


def test_what_only_asks_slurm_goes_with_the_others() -> None:
    [pack] = made(*(mapped(i, command="scontrol -o show hostnames; scontrol  show job $SLURM_JOB_ID") for i in (1, 2)))
    assert len(pack.places) == 2


def test_a_job_that_shares_its_key_with_none_goes_on_its_own() -> None:
    key = SubmissionKey.derive("train", "run", "fit", -1, 1)
    assert made(BatchJob(command="true", name=key.name("fit"))) == []
    assert made(mapped(1)) == []


@pytest.mark.parametrize("name", ["v2-train", "27.train.scheduled__2026-11-21T00:03", "dock"])
def test_jobs_of_one_name_keep_its_numbers(name: str) -> None:
    jobs = [job.replace(name=f"{name}.af-aaaaaaaaaaaa_{index}") for index, job in enumerate(map(mapped, range(30)))]
    [pack] = made(*jobs)
    assert len(pack.places) == 30
    assert pack.job.name == f"{name}.af-aaaaaaaaaaaa"
    assert pack.job.name in packs.names_in_queue([jobs[2].name or ""])
