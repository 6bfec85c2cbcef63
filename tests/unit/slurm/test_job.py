"""A job as words, as a script and as what is run to submit it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_soperator.slurm import dependencies, job_ids
from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.job import BatchJob, job_of

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: name != "_" and not name.startswith(("SBATCH_", "_soperator_", "LD_", "LC_", "GLIBC", "MALLOC"))
)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=50)


def test_words() -> None:
    job = BatchJob(
        command="true",
        name="it's $(mine)",
        partition=["a", "b"],
        nodes=2,
        gpus_per_node=8,
        gpu_type="h100",
        requeue=False,
        hold=False,
        array=[1, 2, 3, 9],
        array_limit=2,
        dependency=[Dependency("afterok", 1), "singleton"],
        container_writable=False,
        extra_args=["--bbf=/x"],
    )
    assert job.argv() == [
        "--job-name=it's $(mine)",
        "--partition=a,b",
        "--nodes=2",
        "--gpus-per-node=h100:8",
        "--dependency=afterok:1,singleton",
        "--array=1-3,9%2",
        "--no-requeue",
        "--container-readonly",
        "--bbf=/x",
    ]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"hold": "True"}, ["--hold"]),
        ({"hold": "False", "requeue": "False"}, ["--no-requeue"]),
        ({"exclusive": "True"}, ["--exclusive"]),
        ({"exclusive": "False"}, []),
        ({"exclusive": "user"}, ["--exclusive=user"]),
        ({"wait_all_nodes": "False"}, ["--wait-all-nodes=0"]),
        ({"contiguous": "None"}, []),
        ({"array": ["0", "3-4"]}, ["--array=0,3-4"]),
        ({"gpus_per_node": "8", "gpu_type": "h100"}, ["--gpus-per-node=h100:8"]),
    ],
)
def test_what_a_template_has_rendered_to_text_means_the_same(said: dict[str, Any], words: list[str]) -> None:
    assert job_of({"command": "true", **said}).argv() == words


def test_numbers_that_airflow_has_rendered_natively_are_the_texts_that_were_given() -> None:
    said = {"args": ["--seed", 1, 0.5], "env": {"OMP_NUM_THREADS": 8}, "array": 5, "extra_args": ["--of-a-plugin", 2]}
    texts = {"args": ["--seed", "1", "0.5"], "env": {"OMP_NUM_THREADS": "8"}, "array": "5"}
    job = job_of({"remote_script": "/x", **said})
    assert job == BatchJob(remote_script="/x", extra_args=["--of-a-plugin", "2"], **texts)
    assert job.problems() == []
    assert job_of({"command": ["seq", 3]}) == BatchJob(command=["seq", "3"])


def test_a_plain_submission_is_plain() -> None:
    submission = BatchJob(script="#!/bin/sh\nécho\n", nodes=1).submission()
    assert submission.argv == ("sbatch", "--parsable", "--nodes=1")
    assert submission.stdin == "#!/bin/sh\nécho\n".encode()
    assert BatchJob(remote_script="/x y", args=["a"]).submission().argv == ("sbatch", "--parsable", "/x y", "a")


def test_variables_are_no_part_of_the_command_line() -> None:
    submission = BatchJob(remote_script="/x", env={"TOKEN": "secret"}).submission()
    assert "secret" not in " ".join(submission.argv)
    assert submission.stdin == b"TOKEN=secret\0\0"
    assert "--export=ALL" in submission.argv
    named = BatchJob(remote_script="/x", env={"B": "", "A": ""}, export=["HOME"]).submission().argv
    assert "--export=HOME,A,B" in named
    assert "--export=A,B" in BatchJob(remote_script="/x", env={"B": "", "A": ""}, export="NONE").submission().argv


def test_the_scripts_own_export_is_not_displaced() -> None:
    script = "#!/bin/sh\n#SBATCH --export=HOME,A=1,B=2\n"
    submission = BatchJob(script=script, env={"B": "3"}).submission()
    assert "--export=HOME,A,B" in submission.argv
    assert submission.stdin.startswith(b"A=1\0B=3\0\0#!")


@pytest.fixture(scope="module")
def fake_sbatch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands where sbatch would be and shows what reaches it: this is about the program ahead of it."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "sbatch").write_text(
        f"#!{sys.executable} -IS\n"
        "import os, sys\n"
        "pairs = [name + b'=' + value for name, value in os.environb.items()]\n"
        "script = open('/dev/stdin', 'rb').read() if '/dev/stdin' in sys.argv else sys.stdin.buffer.read()\n"
        "sys.stdout.buffer.write(b'\\0'.join([*pairs, b'', script]))\n"
    )
    (folder / "sbatch").chmod(0o755)
    return folder


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(NAMES | st.sampled_from(["UID", "IFS", "RANDOM", "PATH", "SHELLOPTS", "BASH_ENV"]), VALUES),
    VALUES,
    st.booleans(),
    st.booleans(),
)
def test_variables_reach_sbatch_and_the_script_follows(
    fake_sbatch: Path, env: dict[str, str], text: str, args: bool, from_file: bool
) -> None:
    script = f"#!/bin/sh\n{text.replace(chr(13), '')}"
    job = BatchJob(script=script, env={"ALWAYS": "x", **env}, args=["a"] if args else ())
    if job.problems():
        return
    submission = job.submission()
    path = {"PATH": f"{fake_sbatch}:/usr/bin:/bin"}
    if from_file:
        # bash reads ahead in a file, and has to go back to where the script begins.
        kept = fake_sbatch / "stdin"
        kept.write_bytes(submission.stdin)
        with kept.open("rb") as stdin:
            said = subprocess.run(submission.argv, stdin=stdin, capture_output=True, env=path, check=True).stdout
    else:
        said = subprocess.run(submission.argv, input=submission.stdin, capture_output=True, env=path, check=True).stdout
    variables, _, rest = said.partition(b"\0\0")
    pairs = dict(pair.split(b"=", 1) for pair in variables.split(b"\0"))
    assert {name: pairs[os.fsencode(name)].decode() for name in env} == env
    assert rest.decode() == script


def test_what_is_shown_holds_no_secret() -> None:
    job = BatchJob(script="#!/bin/sh\n", env={"TOKEN": "secret"}, nodes=2)
    assert repr(job) == "BatchJob(script=<10 characters>, nodes=2, env=<TOKEN>)"


# Terms


@given(st.sets(st.integers(0, 500), min_size=1))
def test_an_array_keeps_its_indices(indices: set[int]) -> None:
    assert job_ids.array_indices(job_ids.array_text(indices)) == sorted(indices)


@given(st.integers(0, 50), st.integers(1, 300), st.integers(1, 9))
def test_a_range_is_an_array(start: int, length: int, step: int) -> None:
    indices = range(start, start + length, step)
    text = job_ids.array_text(indices, limit=4)
    assert job_ids.array_indices(text) == list(indices)
    assert len(text) < 20  # it is a notation, not a list


def test_dependencies_are_read_back() -> None:
    text = "after:1+5:2,afterok:3:4_5,singleton"
    assert ",".join(map(str, dependencies.dependency_terms(text))) == "after:2,after:1+5,afterok:3:4_5,singleton"
    either = dependencies.dependency_terms("afterok:1?afternotok:2")
    assert "?".join(map(str, either)) == "afterok:1?afternotok:2"
