"""Jobs are written as a shell script that bash takes, and that is read as the same jobs."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.pipelines.chains.reading import read
from airflow_provider_soperator.pipelines.chains.writing import as_shell
from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey

PREPARE, FIT = (SubmissionKey.derive("dag", "run", task, -1, 1) for task in ("prepare", "fit"))

SCRIPT = "#!/bin/bash\n#SBATCH -N9\ncat <<'EOF'\nit's \"$HOME\" \\ `x` )\nEOF\ncase x in y) ;; esac # \U0001f4a5"


def test_a_chain() -> None:
    text = as_shell(
        {
            "prepare": BatchJob(name=PREPARE.name("prepare data"), script="#!/bin/sh\necho EOF\n", nodes=2),
            "fit.1": BatchJob(
                name=FIT.name("fit"),
                remote_script="/jobs/fit.sh",
                args=["a b"],
                env={"RATE": "0.1 %"},
                dependency=Dependency("afterok", PREPARE),
            ),
            "end": BatchJob(
                command="echo it's",
                dependency=[Dependency("afterany", PREPARE, FIT), Dependency("after", FIT, minutes=5), "singleton"],
            ),
        }
    )
    assert text == (
        """#!/bin/bash
set -euo pipefail

prepare=$(sbatch --parsable '--job-name=prepare data' --nodes=2 <<'EOF'
#!/bin/sh
echo EOF
EOF
)
echo "prepare: $prepare"

fit_1=$(RATE='0.1 %' sbatch --parsable --job-name=fit --dependency=afterok:$prepare --export=ALL \\
  /jobs/fit.sh 'a b')
echo "fit_1: $fit_1"

end=$(sbatch --parsable --dependency=afterany:$prepare:$fit_1,after:$fit_1+5,singleton \\
  --wrap='echo it'"'"'s')
echo "end: $end"
"""
    )
    prepare, fit, end = read(text)
    assert (prepare.name, prepare.fields) == ("prepare", {"name": "prepare data", "nodes": 2})
    assert (prepare.stdin_script, prepare.args) == ("#!/bin/sh\necho EOF\n", ())
    assert (fit.name, fit.script, fit.args) == ("fit_1", "/jobs/fit.sh", ("a b",))
    rest = {"export": "ALL", "env": {"RATE": "0.1 %"}}
    assert fit.fields == {"name": "fit", **rest, "dependency": "afterok:prepare"}
    assert (end.name, end.command) == ("end", "echo it's")
    assert end.fields == {"dependency": "afterany:prepare:fit_1,after:fit_1+5,singleton"}


def test_dependencies_on_others_than_whole_jobs_that_come_before() -> None:
    waiting = BatchJob(command="true", dependency=Dependency("afterok", FIT))
    first = BatchJob(command="true", name=FIT.name("fit"))
    with pytest.raises(ValueError, match=f"end: it waits for the job with the key {FIT}"):
        as_shell({"end": waiting, "fit": first})
    element = as_shell({"fit": first, "end": waiting.replace(dependency=f"afterok:{FIT}_3")})
    assert " --dependency=afterok:${fit}_3 " in element
    any_of = waiting.replace(dependency=f"afterok:{FIT}?afternotok:{FIT}")
    assert '"--dependency=afterok:$fit?afternotok:$fit"' in as_shell({"fit": first, "end": any_of})


def test_names_of_variables() -> None:
    job = BatchJob(command="true")
    text = as_shell(dict.fromkeys(["a-b", "a.b", "PATH", "1st", "_", "größe"], job))
    assert [stage.name for stage in read(text)] == ["a_b", "a_b_2", "path", "job_1st", "job", "gr__e"]
    assert "job__=$(" in text


ODD = st.text(st.characters(blacklist_categories=("Cs", "Co"), blacklist_characters="\0\2\3\4\5\r"), max_size=20)
LINE = ODD.map(lambda text: "".join(letter for letter in text if letter.isprintable()))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "name": LINE.filter(str.strip),
            "comment": LINE.filter(bool),
            "nodes": st.integers(1, 9),
            "array": st.just("1-3"),
            "dependency": st.just("afterany:17"),
            "env": st.dictionaries(st.sampled_from(["A", "B_2", "PATH", "UID"]), ODD, max_size=3),
            "export": st.sampled_from(["ALL", "NONE", "HOME"]),
        },
    ),
    st.lists(ODD.filter(lambda text: text != ":"), max_size=3),
    ODD,
)
def test_what_is_written_is_read(fields: dict[str, Any], args: list[str], lines: str) -> None:
    script = f"#!/bin/sh\n: {lines}\n"
    text = as_shell({"fit": BatchJob(script=script, args=args, **fields)})
    (stage,) = read(text)
    expected = {name: value for name, value in fields.items() if value}
    said = dict(stage.fields)
    said.pop("array_limit", None)
    if fields.get("env") and fields.get("export") in (None, "ALL"):
        expected["export"] = "ALL"
    assert said == expected
    assert (stage.name, stage.stdin_script, stage.args) == ("fit", script, tuple(args))


BODIES = [
    BatchJob(script=SCRIPT),
    BatchJob(command="true", env={"GROUPS": "2"}),
    BatchJob(command="true", env={"FUNCNAME": "f"}),
    BatchJob(script="#!/bin/sh\nEOF\nEOF_\n", env={"UID": "1", "PATH": "/x", "A": "'\"\n$`"}),
    BatchJob(script=SCRIPT, args=["x", "", "$(y)"]),
    BatchJob(remote_script="/a b.sh", args=["--nodes=9", "it's"], clusters="c1"),
    BatchJob(command="echo $HOME | tr a b; \"x\" 'y' \\", nodes=1, het=[BatchJob(nodes=2), BatchJob(ntasks=1)]),
]


@pytest.mark.parametrize("job", BODIES)
def test_bash_takes_it_and_it_is_read(job: BatchJob) -> None:
    text = as_shell({"first": job, "second": job})
    assert subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=True).stderr == b""
    for stage in read(text):
        assert stage.args == tuple(job.args)
        assert stage.fields.get("env", {}) == job.env
        assert tuple(stage.fields.get("het", ())) == tuple(job.het)
        assert (stage.stdin_script or "").rstrip("\n") == (job.script or "").rstrip("\n")
        assert (stage.script, stage.command) == (job.remote_script, job.command)
