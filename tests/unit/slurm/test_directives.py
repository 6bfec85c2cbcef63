"""#SBATCH lines are read as sbatch reads them, and a job's own words are read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm import directives
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.option_values import Signal

LINE = st.text(st.characters(exclude_categories=("Cc", "Cs")) | st.sampled_from("\"'\\# \t:=,$(`"), max_size=60)


def fields(*lines: str) -> dict[str, Any]:
    return directives.read("#!/bin/sh\n" + "\n".join(lines) + "\ntrue\n")[0].fields


# Words


def quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(LINE.filter(bool))
@example("hetjob")
@example(": x")
@example('"')
@example("\\")
def test_a_quoted_word_is_read_back(word: str) -> None:
    assert directives.split(quoted(word)) == [word]


@given(LINE)
def test_a_quoted_value_is_read_back(value: str) -> None:
    assert directives.split(f"--comment={quoted(value)} # more") == [f"--comment={value}"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("-N 2  -n4\t--mem=1G", ["-N", "2", "-n4", "--mem=1G"]),
        ("--comment='a  b'", ["--comment=a  b"]),
        ("--comment=a' 'b\" \"c", ["--comment=a b c"]),
        (r"--comment=a\ b\#c\"d", ['--comment=a b#c"d']),
        (r"--comment='it\'s'", ["--comment=it's"]),
        ("--a # -b", ["--a"]),
        ("--a#b", ["--a"]),
        ("--a='#' -b", ["--a=#", "-b"]),
        ("'' --lost", []),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    assert directives.split(line) == words


@pytest.mark.parametrize("line", ["--a='", '--b="x', "-n1 : -n2"])
def test_words_that_sbatch_refuses(line: str) -> None:
    with pytest.raises(directives.DirectiveError, match="line 1: "):
        directives.split(line)


# Options


def test_every_form_of_an_option() -> None:
    for form in ("-N2", "-N 2", "--nodes=2", "--nodes 2"):
        assert fields(f"#SBATCH {form}") == {"nodes": 2}
    assert fields("#SBATCH --part=main --cpus-per-t 2") == {"partition": "main", "cpus_per_task": 2}
    assert fields("#SBATCH -Hs") == {"hold": True, "oversubscribe": True}
    assert fields("#SBATCH -HN2") == {"hold": True, "nodes": 2}
    assert fields("#SBATCH --tasks-per-node=3") == {"ntasks_per_node": 3}


def test_a_script_as_people_write_it() -> None:
    assert fields(
        "#SBATCH -J train",
        "#   --- a comment ---",
        "##SBATCH --nodes=9",
        " #SBATCH --nodes=9",
        "#SBATCH --time=1-00:00:00   # a day",
        "",
        "#SBATCH --gpus-per-node=h100:8 --exclusive --requeue",
        "#SBATCH -a 0-9%2 --signal=B:USR1@120 -o 'out put-%j.log'",
        "#SBATCH --nice --mail-type=END,FAIL -d afterok:1:2 --mem 16G",
    ) == {
        "name": "train",
        "time_limit": "1-00:00:00",
        "gpus_per_node": "h100:8",
        "exclusive": True,
        "requeue": True,
        "array": "0-9",
        "array_limit": 2,
        "signal": Signal("USR1", 120, batch_only=True),
        "output": "out put-%j.log",
        "nice": 100,
        "mail_type": "END,FAIL",
        "dependency": "afterok:1:2",
        "mem": "16G",
    }


def test_reading_ends_at_the_first_command() -> None:
    assert fields("#SBATCH -N1", "cd /tmp", "#SBATCH -N2") == {"nodes": 1}


def test_the_last_of_equal_options_holds() -> None:
    assert fields("#SBATCH -N1 --requeue", "#SBATCH --nodes=3 --no-requeue") == {"nodes": 3, "requeue": False}


def test_options_without_a_field_are_kept() -> None:
    part = directives.read("#!/bin/sh\n#SBATCH --bbf=/x --propagate -B 2 -F list --of-a-plugin='a b'\n")[0]
    assert part.extra_args == ["--bbf=/x", "--propagate", "--extra-node-info=2", "--nodefile=list", "--of-a-plugin=a b"]


def test_values_in_export_become_the_environment() -> None:
    assert fields("#SBATCH --export=ALL,A=1,\"B='x,y'\"")["env"] == {"A": "1", "B": "'x,y'"}
    assert fields("#SBATCH --export=HOME,A=1") == {"export": "HOME", "env": {"A": "1"}}
    assert fields("#SBATCH --export=A=1")["export"] == "NONE"


def test_components() -> None:
    parts = directives.read("#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\n#SBATCH HetJob -N3\ntrue\n")
    assert [part.fields for part in parts] == [{"nodes": 1}, {"nodes": 2}, {"nodes": 3}]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("-N", "--nodes needs a value"),
        ("main", "'main' is not an option"),
        ("-y", "unknown option -y"),
        ("--hold=1", "--hold takes no value"),
        ("--ntasks=two", "--ntasks: 'two' is not a whole number"),
        ("--array=1%x", "--array: '1%x' has no number"),
        ("-- x", "'x' is not an option"),
    ],
)
def test_mistakes_name_their_line(line: str, problem: str) -> None:
    with pytest.raises(directives.DirectiveError, match=f"line 2: {problem}"):
        fields(f"#SBATCH {line}")


# There and back


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "name": LINE.filter(str.strip),
            "comment": LINE.filter(bool),
            # What a shell would have to understand is refused.
            "output": LINE.filter(lambda said: bool(said) and not said.startswith(("~", "$"))),
            "nodes": st.integers(1, 1000),
            "ntasks": st.integers(1, 1000),
            "gpus_per_node": st.integers(1, 16) | st.just("h100:8"),
            "mem": st.integers(0, 10**6).map(lambda megabytes: f"{megabytes}M"),
            "time_limit": st.integers(1, 10**5).map(str),
            "array": st.lists(st.integers(0, 1000), min_size=1, max_size=20, unique=True),
            "array_limit": st.integers(1, 9),
            "requeue": st.booleans(),
            "hold": st.just(True),
            "signal": st.builds(Signal, st.sampled_from(["USR1", "TERM"]), st.integers(0, 65535), st.booleans()),
            "container_image": LINE.filter(bool),
            "container_writable": st.booleans(),
        },
    )
)
def test_the_words_of_a_job_are_read_back(said: dict[str, Any]) -> None:
    if "array" not in said:
        said.pop("array_limit", None)
    job = BatchJob(command="true", **said)
    again = BatchJob(command="true", **directives.read_words(job.argv()).fields)
    assert again.argv() == job.argv()
    for field in said.keys() - {"array"}:
        assert getattr(again, field) == said[field]


def test_a_requeue_may_be_expedited() -> None:
    assert directives.read("#!/bin/sh\n#SBATCH --requeue=expedite\n")[0].extra_args == ["--requeue=expedite"]
    assert directives.read_words(["--requeue=expedite"]).extra_args == ["--requeue=expedite"]
