"""Shell scripts of chained sbatch calls are read as the shell reads them, or refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_soperator.pipelines.chains import reading, recording, standins
from airflow_provider_soperator.pipelines.chains.calls import Call
from airflow_provider_soperator.pipelines.chains.reading import read
from airflow_provider_soperator.pipelines.chains.standins import ShellChainError
from airflow_provider_soperator.slurm.job import BatchJob


def one(text: str, **surroundings: object) -> Call:
    (stage,) = read(text, **surroundings)  # type: ignore[arg-type]
    return stage


def graph(text: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The stages by name, each with its dependencies: kind and names."""
    said = {stage.name: stage.fields.get("dependency", "") for stage in read(text)}
    return {name: tuple(tuple(term.split(":")) for term in filter(None, one.split(","))) for name, one in said.items()}


# Whole scripts


def test_a_script_as_manuals_have_it() -> None:
    stages = read(r"""#!/bin/bash
# comments
DATA=/data/x
JOB1=$(sbatch --parsable preprocess.sh)
JOB2=$(sbatch --parsable --dependency=afterok:$JOB1 -N 2 \
    train.sh --data "$DATA")   # the large one
sbatch --dependency=afterok:$JOB1:${JOB2},singleton evaluate.sh
""")
    assert [(stage.name, stage.line, stage.script, stage.args, stage.fields) for stage in stages] == [
        ("preprocess", 4, "preprocess.sh", (), {}),
        ("train", 5, "train.sh", ("--data", "/data/x"), {"nodes": 2, "dependency": "afterok:preprocess"}),
        ("evaluate", 7, "evaluate.sh", (), {"dependency": "afterok:preprocess:train,singleton"}),
    ]
    assert not any(stage.stdin_script or stage.command for stage in stages)


CHAIN = {"a": (), "b": (("afterok", "a"),)}


@pytest.mark.parametrize(
    "script",
    [
        "J=$(sbatch --parsable a.sh)\nsbatch --dependency=afterok:$J b.sh",
        'J="$(sbatch --parsable a.sh)"; sbatch --dependency="afterok:${J}" b.sh',
        "J=`sbatch --parsable a.sh`\nsbatch -d afterok:$J b.sh",
        "export J=$(sbatch --parsable a.sh)\nsbatch --dependency afterok:$J b.sh",
        "readonly J=$(sbatch --parsable a.sh)\nsbatch --dep=afterok:$J b.sh",
        "J=$(sbatch --parsable a.sh) || exit 1\nsbatch -dafterok:$J b.sh",
        "J=$(sbatch --parsable a.sh || exit 1)\nsbatch -dafterok:$J b.sh",
        "J=$(sbatch --parsable a.sh) && sbatch -d afterok:$J b.sh || { echo failed >&2; exit 1; }",
        "J=$(/usr/bin/sbatch a.sh | awk '{print $4}')\nsbatch -d afterok:$J b.sh",
        "J=`sbatch a.sh | awk ' { print $NF } '`\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | awk '/Submitted/ {print $4}')\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | cut -d ' ' -f 4)\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | cut -f4 -d' ')\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh 2>&1 | tee -a log | tr -dc '0-9')\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | awk -- '{print $NF; if (NF > 5) exit}')\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | awk -v to=me@host '{s = \"a|b\"; print $4} NF > 9 {exit}')\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch --parsable a.sh)\necho go | tee -a logs/a.txt $HOME/x/Submit.LOG b.out\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | tee jobs | cut -d ' ' -f 4)\necho $J | tee /dev/stderr\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | uniq -f 1 | sort -t ' ' -k 4 | awk -F '|' '$1 > 2 {print}' | tr -dc '0-9')\n"
        "sbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | awk '/batch|job/ {printf \"%s\\n\", $4} NF > 9 {exit}')\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | awk '{print $3 \"|\" $4}' | cut -d '|' -f 2)\nsbatch -d afterok:$J b.sh",
        "J=$(</dev/null sbatch --parsable a.sh)\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | tr -cd '[:digit:]')\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | tr -d 'A-Za-z ')\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | grep -oE '[0-9]+')\nsbatch -d afterok:$J b.sh",
        "set -e\nJ=$(sbatch a.sh | grep -oE '[0-9]+')\ngrep -q 8 <<< $J && sbatch -d afterok:$J b.sh",
        r"J=`sbatch a.sh | grep -P -o '\d+'`" + "\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | sed 's/[^0-9]*//g')\nsbatch -d afterok:$J b.sh",
        r"J=$(sbatch a.sh | sed -n 's/^Submitted batch job \([0-9]*\)$/\1/p')" + "\nsbatch -d afterok:$J b.sh",
        r"J=$(sbatch a.sh | sed -E 's/.* ([0-9]+)/\1/')" + "\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch --parsable a.sh | cut -d';' -f1)\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch --parsable -M c1 a.sh); J=${J%%;*}\nsbatch -d afterok:$J b.sh",
        "OUT=$(sbatch a.sh)\nJ=${OUT##* }\nsbatch -d afterok:$J b.sh",
        'J=$(sbatch a.sh); J="${J##* }"\nsbatch -d afterok:$J b.sh',
        "J=$(sbatch a.sh)\nsbatch -d afterok:${J//[!0-9]/} b.sh",
        "J=$(sbatch a.sh)\nsbatch -d afterok:${J/Submitted batch job /} b.sh",
        "J=$(sbatch a.sh)\nJ=$(echo $J | awk '{print $4}')\nsbatch -d afterok:$J b.sh",
        'J=$(sbatch a.sh)\nJ=$(cut -d" " -f4 <<< "$J")\nsbatch -d afterok:$J b.sh',
        "OUT=$(sbatch a.sh)\nPARTS=($OUT)\nJ=(${PARTS[3]})\nsbatch -d afterok:$J b.sh",
        "for f in a b; do D=afterok:$(sbatch --dependency=$D --parsable $f.sh); done",
        "for f in a b; do J=$(sbatch -d ${J+afterok:}${J:-0} --parsable $f.sh); done",
        "for f in a b; do O=(`sbatch ${J+-d afterok:$J} $f.sh`); J=(${O[3]}); done",
        "J=$(sbatch --parsable a.sh)\nDEP=afterok:$J\nsbatch --dependency=$DEP b.sh",
        'J=$(sbatch --parsable a.sh)\nDEP="--dependency=afterok:$J"\nsbatch $DEP b.sh',
        "J=$(sbatch --parsable a.sh)\nsbatch ${J:+-d afterok:$J} b.sh",
        "SUBMIT='sbatch --parsable'\nJ=$($SUBMIT a.sh)\n$SUBMIT -d afterok:$J b.sh",
        'for f in a b; do J=$(sbatch --parsable ${J:+-d "afterok:$J"} $f.sh); done',
        'J=\nfor f in a b; do D=; [ -n "$J" ] && D="-d afterok:$J"; J=$(sbatch --parsable $D $f.sh); done',
        'J=$(sbatch --parsable a.sh)\nif [ -z "$J" ]; then echo failed; exit 1; fi\nsbatch -d afterok:$J b.sh',
        "J=$(sbatch --parsable a.sh)\nif [ $? -ne 0 ]; then\n  exit 1\nfi\nsbatch -d afterok:$J b.sh",
        'J=$(sbatch --parsable a.sh)\n[[ "$J" =~ ^[0-9]+$ ]] || exit 1\nsbatch -d afterok:$J b.sh',
        "[[ $(sbatch a.sh) =~ ([0-9]+) ]]\nJ=${BASH_REMATCH[1]}\nsbatch -d afterok:$J b.sh",
        "if ! J=$(sbatch --parsable a.sh); then exit 1; fi\nsbatch -d afterok:$J b.sh",
        'set -euo pipefail\nJ=$(sbatch --parsable a.sh)\necho "$(date): $J"\nsbatch -dafterok:$J b.sh\nsqueue -u $USER',
    ],
)
def test_ways_to_say_the_same(script: str) -> None:
    assert graph(script) == CHAIN


def test_ids_collected_in_loops() -> None:
    collected = {"t": (), "t_2": (), "t_3": (), "end": (("afterany", "t", "t_2", "t_3"),)}
    for items in ("1 2 3", "{1..3}", "$(seq 3)", "$(seq 1 3)", '"a b" c d'):
        for collecting, waiting in (
            ('IDS="$IDS:$J"', "afterany$IDS"),
            ("IDS+=:$J", "afterany:${IDS#:}"),
            ("LIST=(${LIST[@]} $J)", '$(IFS=,; echo "afterany:${LIST[*]}" | tr , :)'),
            ('IDS="$J $IDS"; SORTED=$IDS', "afterany:$(echo $SORTED | tr ' ' ':')"),
        ):
            loop = f"for i in {items}; do\n J=$(sbatch --parsable t.sh $i)\n {collecting}\ndone"
            text = f"IDS=; LIST=()\n{loop}\nsbatch -d {waiting} end.sh"
            found = graph(text)
            assert set(found) == set(collected), text
            assert set(found["end"][0]) == set(collected["end"][0]), text


def test_ids_have_the_order_of_their_jobs() -> None:
    found = graph(
        "for i in {1..9}; do IDS+=$(sbatch t.sh)$'\\n'; done\n"
        "sbatch -d afterok:$(grep -o '[0-9]*$' <<< \"$IDS\" | sort -n | tail -1) end.sh"
    )
    assert found["end"] == (("afterok", "t_9"),)


def test_a_chain_in_a_loop_with_a_first_one_that_is_different() -> None:
    assert graph("""
PREV=""
for i in $(seq 1 3); do
    if [ "$i" -eq 1 ]; then
        PREV=$(sbatch --parsable step.sh)
    else
        PREV=$(sbatch --parsable --dependency=afterany:$PREV step.sh)
    fi
done
""") == {"step": (), "step_2": (("afterany", "step"),), "step_3": (("afterany", "step_2"),)}


# Single things


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("TRAIN=$(sbatch --parsable -J other x.sh)", "train"),
        ("train_id=$(sbatch x.sh)", "train_id"),
        ("JOB_ID_1=$(sbatch -J other x.sh)", "other"),
        ("jid=$(sbatch --parsable scripts/x.y.sbatch)", "x.y"),
        ("sbatch -J 'a b/c' x.sh", "a_b_c"),
        ("sbatch <<EOF\n#!/bin/sh\n#SBATCH --job-name=inner\nEOF", "inner"),
        ("JOB7=$(sbatch --wrap true)", "job7"),
        ("sbatch --wrap true", "job"),
    ],
)
def test_names(script: str, name: str) -> None:
    assert one(script).name == name


def test_options() -> None:
    stage = one(
        "sbatch -pmain -N2 -t 1:00:00 --mem 4G --array=0-9%2 -w node-[1-2] --bbf=/x 'a b.sh' -N 9 -- x".replace(
            "node-[1-2]", "'node-[1-2]'"
        )
    )
    assert stage.fields == {
        "partition": "main",
        "nodes": 2,
        "time_limit": "1:00:00",
        "mem": "4G",
        "array": "0-9",
        "array_limit": 2,
        "nodelist": "node-[1-2]",
        "extra_args": ("--bbf=/x",),
    }
    assert (stage.script, stage.args) == ("a b.sh", ("-N", "9", "--", "x"))
    assert one("sbatch --nodelist=node-[1-2] x.sh").fields == {"nodelist": "node-[1-2]"}
    assert one("N=2; let M=N*3; sbatch -t $((N * 5)):00 -n$M x.sh").fields == {"time_limit": "10:00", "ntasks": 6}
    assert one("((n += 2)); sbatch -n $((++k + n)) -N $((16#f)) x.sh $n").fields == {"ntasks": 3, "nodes": 15}
    assert one("N=node-[1-2] O=-wnode-[1-2]; sbatch --nodelist=$N $O x.sh").fields == {"nodelist": "node-[1-2]"}
    assert one("F='*.csv'; set -f; sbatch x.sh \"$F\" $F").args == ("*.csv", "*.csv")


def test_components() -> None:
    stage = one("sbatch -N1 -p main : -N2 --bbf=/x : -n3 x.sh : y")
    assert stage.fields["nodes"] == 1
    assert stage.fields["het"] == (BatchJob(nodes=2, extra_args=("--bbf=/x",)), BatchJob(ntasks=3))
    assert (stage.script, stage.args) == ("x.sh", (":", "y"))


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("A=1\nsbatch <<'EOF'\n#!/bin/sh\necho $A \\$B `x` it's\nEOF\n", "#!/bin/sh\necho $A \\$B `x` it's\n"),
        ("A=1\nsbatch <<EOF\n#!/bin/sh\necho $A \\$B \\`x\\` it's\nEOF", "#!/bin/sh\necho 1 $B `x` it's\n"),
        ("J=$(sbatch -N1 <<-'EOF' | awk '{print $4}'\n\t#!/bin/sh\n\tx)\n\tEOF\n)", "#!/bin/sh\nx)\n"),
        ('J="$(cat <<EOF | sbatch --parsable\n#!/bin/sh\nEOF\n)"', "#!/bin/sh\n"),
        ("sbatch /dev/stdin <<'EOF'\n#!/bin/sh\nEOF", "#!/bin/sh\n"),
    ],
)
def test_scripts_that_are_part_of_the_script(script: str, text: str) -> None:
    stage = one(script)
    assert (stage.stdin_script, stage.script) == (text, None)


def test_other_bodies() -> None:
    assert one("sbatch --wrap='echo \"$HOME\"'").command == 'echo "$HOME"'
    assert one("_x=1; sbatch --wrap 'cd $_' -J $_x").command == "cd $_"
    assert one("sbatch < jobs/x.sh").script == "jobs/x.sh"
    assert one("sbatch /dev/stdin a b <<'EOF'\n#!/bin/sh\nEOF").args == ("a", "b")


def test_ids_alone_are_of_jobs_that_end_in_any_way() -> None:
    *_, last = read("A=$(sbatch --parsable a.sh)\nB=$(sbatch --parsable b.sh)\nsbatch -d $A,$B,7_1 c.sh")
    assert last.fields == {"dependency": "afterany:a,afterany:b,afterany:7_1"}


def test_exported_ids_are_no_variables_of_jobs() -> None:
    _, second = read("export J=$(sbatch --parsable a.sh)\nexport A=1\nsbatch -d afterok:$J b.sh")
    assert second.fields == {"env": {"A": "1"}, "dependency": "afterok:a"}


def test_where_it_runs() -> None:
    first, second, third = read("cd exp\nsbatch a.sh\ncd ..\nsbatch b.sh\ncd /abs; sbatch -D sub c.sh")
    assert (first.script, first.fields) == ("exp/a.sh", {"chdir": "exp"})
    assert (second.script, second.fields) == ("b.sh", {})
    assert (third.script, third.fields) == ("/abs/c.sh", {"chdir": "/abs/sub"})
    assert one("cd run_1\nsbatch ../a.sh").script == "a.sh"
    inner, outer = read("J=$(cd exp && sbatch --parsable a.sh)\nsbatch -d afterok:$J b.sh")
    assert (inner.script, outer.script) == ("exp/a.sh", "b.sh")


def test_the_environment_of_jobs() -> None:
    script = "PLAIN=1\nexport A='x y' B\nB=2\nC=3 env D=4 sbatch {} x.sh\nunset A\n"
    every = {"A": "x y", "B": "2", "C": "3", "D": "4"}
    assert one(script.format("")).fields == {"env": every}
    assert one(script.format("--export=ALL,E=5")).fields == {"export": "ALL", "env": {**every, "E": "5"}}
    assert one(script.format("--export=A,HOME")).fields == {"export": "HOME", "env": {"A": "x y"}}
    assert one(script.format("--export=A")).fields == {"export": "NONE", "env": {"A": "x y"}}
    assert one(script.format("--export=NONE")).fields == {"export": "NONE"}
    given = one("S=1\nsbatch x.sh $2", variables={"DATA": "/d", "S": "2", "USER": "me", "NONE": "", "2": "x"})
    assert given.fields == {"env": {"DATA": "/d"}}
    for default, epochs in ((":-10", "20"), (":=10", "20"), ("-10", "20"), (":-10}0${X-", "200")):
        call = f"EPOCHS=${{EPOCHS{default}}}\nsbatch x.sh"
        assert one(call, variables={"EPOCHS": "20"}).fields == {"env": {"EPOCHS": epochs}}
        assert one(call).fields == {}
    for before in ("LIBS=/x", "export LIBS=/x${LIBS:+:$LIBS}"):
        assert one(f"{before}\nexport LIBS=/y:$LIBS\nsbatch x.sh").fields == {"env": {"LIBS": "/y:/x"}}
    assert one("set -a\nA=1\nsbatch x.sh").fields == {"env": {"A": "1"}}
    own = {"HOME": "/data/me", "TERM": "dumb", "USER": "me", "LC_ALL": "C"}
    exported = " ".join(f"{name}={value}" for name, value in own.items())
    assert one(f"export {exported}\nsbatch x.sh").fields == {"env": own}
    # These a job has of its own.
    assert one("export HOME USER PATH PWD TERM\necho $USER\nsbatch x.sh").fields == {}
    # The language need not be one of this machine.
    assert one("export LC_ALL=xx_XX.UTF-8\nsbatch x.sh").fields == {"env": {"LC_ALL": "xx_XX.UTF-8"}}


def test_jobs_that_are_not_of_the_script() -> None:
    first, second = read(
        "A=$(sbatch --parsable -d after:7+5?afterok:8 a.sh)\nsbatch -d afterok:17:$A,after:$A+5,afterany:18 b.sh"
    )
    assert first.fields == {"dependency": "after:7+5?afterok:8"}
    assert second.fields == {"dependency": "afterok:17:a,after:a+5,afterany:18"}
    # A number that is a part of a stand-in by chance.
    _, second = read("sbatch a.sh\nsbatch -d afterok:8702:$1,after:170+17 b.sh", variables={"1": "2170"})
    assert second.fields == {"dependency": "afterok:8702:2170,after:170+17"}


@pytest.mark.parametrize("dashes", ["", "--"])
def test_what_the_script_takes_from_its_surroundings(dashes: str) -> None:
    script = 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nsbatch -o $HOME/%j "$HERE/x.sh" $1 ${2:-none}'
    script = script.replace('cd "$(dirname ', f'cd {dashes} "$(dirname {dashes} ')
    stage = one(script, variables={"HERE": "/project", "HOME": "/home/me", "1": "fast"})
    assert (stage.script, stage.args, stage.fields) == ("/project/x.sh", ("fast", "none"), {"output": "/home/me/%j"})
    assert one("set -e\nA=$(echo 1)\necho $A > log\nsbatch $A.sh", ignored=["echo"]).script == "1.sh"
    assert one('sbatch x.sh "$@"', variables={"@": "a b"}).args == ("a", "b")
    assert one('cd "$(dirname "$0")"\nsbatch x.sh', ignored=["cd"]).script == "x.sh"
    assert one("module load cuda\nmkdir -p logs\nsbatch x.sh", ignored=["module", "mkdir"]).script == "x.sh"
    assert one("rm -f logs/*.out\nsbatch x.sh", ignored=["rm"]).script == "x.sh"


@pytest.mark.parametrize(
    "script",
    [
        'submit() {\n  local id\n  id=$(sbatch --parsable "$@") || return 1\n  echo $id\n}\n'
        "JOB1=$(submit a.sh)\nJOB2=$(submit -d afterok:$JOB1 b.sh)",
        'while read -r name; do J=$(sbatch --parsable ${J:+-d afterok:$J} $name.sh); done <<< "a\nb"',
        "N=(a b)\nfor ((i=0; i<${#N[@]}; i++)); do J=$(sbatch --parsable ${J:+-d afterok:$J} ${N[i]}.sh); done",
        "declare -A J\nfor n in a; do J[$n]=$(sbatch --parsable $n.sh); done\nsbatch -d afterok:${J[a]} b.sh",
        "M=slow\ncase $M in fast) sbatch c.sh ;; s*) J=$(sbatch --parsable a.sh) ;; esac\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch --parsable a.sh 2>/dev/null)\n(sbatch -d afterok:$J b.sh) > /dev/null 2>&1",
        'sbatch() { command sbatch --parsable "$@"; }\nJ=$(sbatch a.sh)\nsbatch -d afterok:$J b.sh',
        "J=$(sbatch --parsable {a,}.sh) || sbatch c.sh\nsbatch -d afterok:$J $'b.sh'",
        "SBATCH=$(which sbatch)\nJ=$($SBATCH --parsable a.sh)\ntime $SBATCH -d afterok:$J b.sh",
        "eval 'J=$(sbatch --parsable a.sh)'\neval \"sbatch -d afterok:$J b.sh\"",
        # Whatever the cluster decides, the jobs are the same, or the script ends with an error.
        "[ -d logs ] && echo there\nJ=$(sbatch --parsable a.sh)\nsbatch -d afterok:$J b.sh",
        "[[ -f config ]] || exit 1\n[ ! -e x ] && exit 2\nJ=$(sbatch --parsable a.sh)\nsbatch -d afterok:$J b.sh",
        "for c in sbatch bwa; do command -v $c > /dev/null || exit 1; done\nhash jq || exit 1\ntype jq && echo\n"
        "J=$(sbatch --parsable a.sh)\nsbatch -d afterok:$J b.sh",
        "O=run\n[ $O = -h ] && exit 0\n[[ $O == -h || $O == --help ]] && exit 0\nJ=$(sbatch --parsable a.sh)\n"
        "sbatch -d afterok:$J b.sh",
        "[ -f x ] && exit 3\n[ -e y ] && exit 1\nls || exit\nsbatch -d afterok:$(sbatch --parsable a.sh) b.sh",
        'X=x; [[ ! -f "$X/a b" ]] && exit 1\n[[ ! -d x ]] && echo\nsbatch -d afterok:$(sbatch --parsable a.sh) b.sh',
        "echo $PATH\nJ=$(sbatch a.sh | awk '$3 > 2 {print $4}')\nsbatch -d afterok:$J b.sh",
        'for d in "$DATA" "$HOME"; do ls "$d"; done\nfor d in $DATA/x; do ls $d; done\n'
        "sbatch -d afterok:$(sbatch --parsable a.sh) b.sh",
    ],
)
def test_what_bash_follows_is_read(script: str) -> None:
    assert graph(script) == CHAIN


def test_what_a_traced_script_shows_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(recording.Script, "_heed", lambda self, errors, *_: said.append(errors))
    assert one("set -x\nsbatch a.sh").script == "a.sh"
    assert not any(said)


def test_programs_that_read_no_input_leave_it_to_the_loop() -> None:
    loop = "while read -r n; do {}; sbatch $n.sh; done <<< $'a\\nb\\nc'"
    for command in ("x=$(awk 'BEGIN {print 3 / 2}')", "echo $(wc -l $n.txt)", "grep -q x $n.txt || :"):
        assert list(graph(loop.format(command))) == ["a", "b", "c"], command
    # What reads it takes all of it.
    assert list(graph(loop.format("x=$(tail -1)"))) == ["a"]


def test_a_script_of_a_job_is_as_it_was_written() -> None:
    text = "#!/bin/bash\nmodule load cuda > /dev/null 2>&1\n[[ ! -f x ]] || python x.py &>/dev/null\n"
    assert one(f"sbatch <<'EOF' > /dev/null\n{text}EOF\n").stdin_script == text


def test_the_line_of_a_call_is_where_it_begins() -> None:
    assert one("\nsubmit() {\n  sbatch -N 2 \\\n    a.sh\n}\nsubmit").line == 3


def test_a_check_that_is_not_passed_names_what_is_missing() -> None:
    usage = "if [ $# -lt 1 ]; then echo usage; exit 2; fi\nsbatch a.sh"
    with pytest.raises(ShellChainError, match=r"line 1: the script ends here with exit 2: .*variables={'1': \.\.\.}"):
        read(usage)
    assert one(usage, variables={"1": "x"}).script == "a.sh"


# What is refused


@pytest.mark.parametrize(
    ("script", "line", "problem"),
    [
        ("sbatch a.sh\nmkdir -p logs", 2, r"'mkdir' is not understood, .*ignored=\['mkdir'\]"),
        ("J=$(get_id $(sbatch a.sh))", 1, "'get_id' is not understood"),
        ("X=$(./submit.sh)", 1, "'./submit.sh' is not understood"),
        ("J=$(ssh login sbatch a.sh)", 1, "'ssh' is not understood, and submits a job: call sbatch itself"),
        ("sbatch a.sh | mail me", 1, "'mail' is not understood"),
        ("sbatch a.sh | sed -i s/a/b/", 1, "'sed' is not understood"),
        ("\nwhile true; do sbatch a.sh; done", 2, "more than 20 jobs"),
        ("case $1 in a) sbatch a.sh;; esac", 1, r"\$1 is an argument of the script"),
        ("for f in *.sh; do sbatch $f; done", 1, r"'\*.sh' is a pattern for files"),
        ('A=(*.sh)\nsbatch "${A[0]}"', 1, r"'\*.sh' is a pattern for files"),
        ("A=(a b)\nsbatch ${A[2]}", 2, "sbatch is given no script"),
        ("set -u\nA=(a b)\nsbatch ${A[2]}", 3, r"\$A\[2\] is not set"),
        ("sbatch a.sh &\nsbatch b.sh", 2, "`&` starts a command beside"),
        ("read -r _ _ _ J < <(sbatch a.sh)\nsbatch -d afterok:$J b.sh", 2, r"and so does <\(…\): .* write \$\(…\)"),
        ("sbatch ~/a.sh", 1, r"\$HOME is not set in the script"),
        ("if [ -f x ]; then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("if [ -f x ]; then echo y; else sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("if [ 1 = 1 -a ! -f x ]; then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("if [[ 1 == 1 && ( -f x ) ]]; then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        (
            "set -e\nif [[ -d x ]]; then sbatch a.sh; fi\nsbatch b.sh",
            2,
            "whether this runs is known only on the cluster",
        ),
        ("if [[ a -nt b ]]; then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("P=cpu\ncommand -v nvidia-smi > /dev/null && P=gpu\nsbatch -p $P a.sh", 2, "whether this runs is known only"),
        ("[ -f x ] && sbatch a.sh", 1, "whether this runs is known only on the cluster"),
        (
            "sbatch $1",
            1,
            r"\$1 is an argument of the script: .*variables={'1': ...}, or --variable 1=... on the command",
        ),
        ("sbatch --mem=$((MEM*1024)) a.sh", 1, r"\$MEM is not set in the script"),
        ("for ((i=0; i<N; i++)); do sbatch a.sh; done\nsbatch b.sh", 1, r"\$N is not set in the script"),
        ("sbatch -o $HOME/x a.sh", 1, r"\$HOME is not set in the script"),
        ("X=$(date)\n\nsbatch a.sh $X", 3, r"what date says \(line 1\) is known only on the cluster"),
        ("X=$(echo $NONE | tr ' ' ,)\n\nsbatch a.sh $X", 3, r"\$NONE is not set"),
        ("export X=$(pwd)\nsbatch a.sh", 2, r"the job would get X: what pwd says \(line 1\)"),
        ("X=$(sbatch $UNKNOWN)", 1, r"\$UNKNOWN is not set"),
        ('cd "$(dirname "$0")"', 1, r"ignored=\['cd'\]"),
        ("cd -", 1, "where this cd leads to is known only on the cluster"),
        ("export LIBS=/x:$LIBS\nsbatch a.sh", 2, r"the job would get LIBS: \$LIBS is not set"),
        ("f() { hostname; }\nexport -f f\nsbatch a.sh", 3, "a function is exported"),
        ("export SBATCH_PARTITION=main\nsbatch a.sh", 2, "SBATCH_PARTITION changes what sbatch does"),
        ("export SLURM_HINT=nomultithread\nsbatch a.sh", 2, "SLURM_HINT changes what sbatch does"),
        ("cat > a.sh <<EOF\n#!/bin/sh\nEOF\nsbatch a.sh", 1, "the file that is written here, a.sh, would be missing"),
        ("echo x $UNKNOWN > a.sh", 1, "the file that is written here, a.sh, would be missing"),
        ("sbatch <<EOF\n#!/bin/sh\necho $SLURM_JOB_ID\nEOF", 1, r"\$SLURM_JOB_ID is not set"),
        ("sbatch <<EOF\n#!/bin/sh", 1, "the here-document has no end 'EOF'"),
        ("sbatch 'a", 1, "while looking for matching"),
        ("J=$(sbatch a.sh", 1, "while looking for matching"),
        ("if true; then sbatch a.sh", 1, "unexpected end of file"),
        ("done", 1, "near unexpected token `done'"),
        ("sbatch", 1, "sbatch is given no script"),
        ("sbatch --wrap=true a.sh", 1, "--wrap and a script"),
        ("sbatch --wait a.sh", 1, "--wait cannot be used: .* let the calls after it wait by --dependency"),
        ("#!/bin/zsh\nA=(x y)\nsbatch a.sh $A", 1, r"it is no script of bash \(#!/bin/zsh\)"),
        ("sbatch --nodes", 1, "--nodes needs a value"),
        ("sbatch --ntasks=two a.sh", 1, "--ntasks: 'two' is not a whole number"),
        ("sbatch --of-a-plugin a.sh", 1, "--of-a-plugin is not a known option"),
        ("sbatch <<'EOF'\n#!/bin/sh\n#SBATCH -y\nEOF", 1, "mistake in its line 2: unknown option -y"),
        ("J=$(sbatch a.sh)\nsbatch -d afterok:$J b.sh", 2, "sbatch's whole message in place of an id"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d afterok:$J?afterok:$J b.sh", 2, r"'\?' in a dependency"),
        ("J=$(sbatch a.sh | cut -c21-27)\nsbatch -d afterok:17:$J b.sh", 2, "an id is cut out by its width, and ids"),
        ("J=$(sbatch a.sh); J=$(sbatch a.sh)\nsbatch -d after:${J: -7}+5 b.sh", 2, "an id is cut out by its width"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d afterok:${J}_3 b.sh", 2, "something behind the id"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d afterok::$J b.sh", 2, "'' is neither a job id"),
        ("J=$(sbatch a.sh)\nsbatch -d ${J: -6} b.sh", 2, "an id is cut out by its width"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d afterok:$J,$J b.sh", 2, r"join the ids .* as in afterok:\$A:\$B"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d 7,afterok:$J b.sh", 2, "an id without a type beside others"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d afterall:$J b.sh", 2, "'afterall' is not a type of dependency"),
        ("J=$(sbatch --parsable a.sh)\nsbatch b.sh --dependency=afterok:$J", 2, "an option stands after the script"),
        ("J=$(sbatch --parsable a.sh)\nsbatch b.sh -dafterok:$J", 2, "an option stands after the script"),
        ("J=$(sbatch --parsable a.sh)\nsbatch b.sh --id=$J", 2, "the id of a job is used for something else"),
        ("J=$(sbatch a.sh | tr -dc 0-9)\nsbatch <<E\n#!/bin/sh\n#SBATCH -d afterok:$J\nE", 2, "give sbatch itself"),
        ("J=$(sbatch a.sh | tr -dc 0-9)\nsbatch <<E\n#!/bin/sh\necho $J\nE", 2, "is used for something else"),
        ("J=$(sbatch --parsable a.sh)\nsbatch b.sh $J", 2, "the id of a job is used for something else"),
        ('J=$(sbatch --parsable a.sh)\nsbatch --wrap "scancel $J"', 2, "the id of a job is used for something else"),
        ("J=$(sbatch --parsable a.sh)\nJ=$J sbatch b.sh", 2, "the id of a job is used for something else"),
        ("J=$(sbatch --parsable a.sh)\nsbatch --export=J=$J b.sh", 2, "the id of a job is used for something else"),
        ("if grep -q x config; then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("until [ -f x ]; do sleep 9; done\nsbatch a.sh", 1, "whether this runs is known only on the cluster"),
        ("if X=$(cat config); then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("ls a.sh\nif [ $? -eq 0 ]; then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("ls a.sh && sbatch a.sh", 1, "whether this runs is known only on the cluster"),
        ("[ -f x ] || [ -f y ] || sbatch a.sh\nsbatch b.sh", 1, "whether this runs is known only on the cluster"),
        ("if ls x; then :; else\n[ -f y ] && exit 1\nsbatch a.sh; fi", 2, "whether this runs is known only on the"),
        ("X=$([ -f x ] && echo y)\nsbatch a.sh $X", 1, "whether this runs is known only on the cluster"),
        ("X=$(if [ -f x ]; then echo y; fi)\nsbatch a.sh $X", 1, "whether this runs is known only on the cluster"),
        ("[ -f x ] || echo y > a.sh", 1, "the file that is written here, a.sh, would be missing"),
        ("while squeue -j 1 | grep -q 1; do sleep 9; done", 1, "whether this runs is known only on the cluster"),
        ("[[ -d / ]] && sbatch a.sh", 1, "whether this runs is known only on the cluster"),
        ("[[ $HOSTNAME == login* ]] || exit 1", 1, r"\$HOSTNAME is not set"),
        ("while :; do :; done", 1, "does not come to an end"),
        ("while read -r x; do sbatch $x; done < list", 1, "what is in list is known only on the cluster"),
        ("N=$(wc -l < list)\nsbatch -a 1-$N a.sh", 2, "what is in list is known only on the cluster"),
        (". ./env.sh", 1, "'.' is not understood"),
        ("export PATH=/opt/bin:$PATH", 1, "PATH is set, which the jobs would not get"),
        ("sbatch -J x$$ a.sh", 1, "numbers of processes"),
        ("sbatch -J x$BASHPID a.sh", 1, "numbers of processes"),
        ('echo out && cd "$_"\nsbatch a.sh', 1, r"\$_, the last word of the command before, .*: write the word itself"),
        ("echo out && cd ${_}/x\nsbatch a.sh", 1, r"\$_, the last word of the command before"),
        ("read -p 'sure?' x", 1, "this asks the one who runs the script"),
        ("while read -r x; do sbatch a.sh; done\nsbatch b.sh", 1, "this asks the one who runs the script"),
        ('readarray -t A\nfor x in "${A[@]}"; do sbatch a.sh; done', 2, "this asks the one who runs the script"),
        ("select x in a b; do sbatch $x.sh; break; done", 1, "this asks the one who runs the script"),
        ("sbatch -n $(grep -c .) a.sh", 1, "what grep says"),
        ("cat | sbatch", 1, "sbatch is given no script"),
        ("D=$(date)\nY=${D//[!0-9]/}", 2, "what date says"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d afterok:$((J + 1)) b.sh", 2, "is reckoned from the id of a job"),
        ("for f in a b; do sbatch $f; done\nfor f in /etc/*; do sbatch $f; done", 2, "is a pattern for files"),
        ("sbatch a.sh *.csv", 1, "is a pattern for files"),
        # How many jobs there are is not known either.
        ("for i in $(seq 1 $N); do sbatch a.sh; done", 1, r"\$N is not set"),
        ("for i in `seq ${N}0`; do\n  (sbatch a.sh)\ndone", 2, r"\$N is not set"),
        ("for f in $(cat list); do sbatch a.sh; done", 1, "what cat says"),
        ("n=0\nfor f in $(ls data); do n=$((n + 1)); done\nsbatch -a 1-$n a.sh", 2, "what ls says"),
        ("for x in $(echo $A,b | tr , ' '); do sbatch a.sh; done", 1, r"\$A is not set"),
        ("mapfile -t A < list\nfor i in ${!A[@]}; do sbatch -J x$i a.sh; done", 2, "what is in list"),
        ('mapfile -t A < list\nfor x in "${A[@]}"; do sbatch a.sh; done', 2, "what is in list"),
        ('P=$1; shift\nfor s in "$@"; do sbatch a.sh; done\nsbatch b.sh', 2, r"\$2 is an argument"),
        ('echo "$0"\nfor s in "$@"; do sbatch a.sh; done\nsbatch b.sh', 2, r"\$1 is an argument"),
        ("for s; do sbatch a.sh; done\nsbatch b.sh", 1, r"\$1 is an argument"),
        # Nor is what comes out of a command in the place of a value that is weighed, or of an element of an array.
        ("case $(hostname) in login*) sbatch a.sh;; esac\nsbatch b.sh", 1, "what hostname says"),
        ("if [[ $(date +%u) == 1 ]]; then sbatch a.sh; fi\nsbatch b.sh", 1, "what date says"),
        ("[[ -n $(squeue -h -n a) ]] && exit 0\nsbatch a.sh", 1, "what squeue says"),
        ("A=(x $(hostname))\n[[ ${A[1]} == login* ]] && sbatch a.sh\nsbatch b.sh", 2, "what hostname says"),
        ("declare -A A=([x]=$(hostname))\ncase ${A[x]} in l*) sbatch a.sh;; esac", 2, "what hostname says"),
        ("A=(x $(ls))\nsbatch -a 1-${#A[@]} a.sh", 2, "what ls says"),
        ("L=$(ls)\nset -- $L\nsbatch -a 1-$# a.sh", 3, "what ls says"),
        ("R=$(squeue -h)\nsbatch ${R:+--hold} a.sh", 2, "what squeue says"),
        ("if [[ ! -f x ]]; then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("[[ ! -e x ]] || exit 0\nsbatch a.sh", 1, "whether this runs is known only on the cluster"),
        ("[[ -d x && ! -d y ]] && exit 0\nsbatch a.sh", 1, "whether this runs is known only on the cluster"),
        ("f() { sbatch $1; }\nif [ $# -gt 0 ]; then f b.sh; else f a.sh; fi", 2, r"\$1 is an argument .*{'@': ''}"),
        # Nor what a variable is that is set only in a comment, a text, or a job, or is in a value.
        ("# usage: DATA=/x run_all.sh\nsbatch a.sh $DATA", 2, r"\$DATA is not set"),
        ('u() { echo "usage: DATA=/x $0"; }\nsbatch a.sh $DATA', 2, r"\$DATA is not set"),
        ("sbatch <<'EOF'\n#!/bin/sh\nDATA=/x\nEOF\nsbatch a.sh $DATA", 5, r"\$DATA is not set"),
        ("export OUT=$SCRATCH/x\nsbatch -o $OUT/%j a.sh", 2, r"\$SCRATCH is not set"),
        ("f() { local d=$BASE/x; sbatch -D $d a.sh; }\nf", 1, r"\$BASE is not set"),
        ("export DATA\nsbatch a.sh $DATA", 2, r"\$DATA is not set"),
        ("echo $PATH\nsbatch --export=PATH=$PATH a.sh", 2, r"\$PATH is not set"),
        # Patterns for files may be in variables, and after a call of sbatch, too.
        ("F='*.csv'\nsbatch a.sh $F", 2, r"'\*.csv' is a pattern for files"),
        ("sbatch a.sh\nfor f in $D/*.csv; do sbatch b.sh; done", 2, "is a pattern for files"),
        ("shopt -s nullglob\nsbatch a.sh\nfor f in *.gz; do sbatch b.sh; done", 3, "is a pattern for files"),
        ("shopt -s nullglob\nsbatch --nodelist=n-[1-2] a.sh", 2, "is a pattern for files"),
        ("P='x/*.csv'\nsbatch a.sh\nfor f in $P; do sbatch b.sh; done", 3, r"'x/\*.csv' is a pattern for files"),
        # What jobs would inherit, or bash itself knows.
        ("umask 002\nsbatch a.sh", 1, "'umask' is not understood"),
        ("ulimit -s unlimited\nsbatch a.sh", 1, "'ulimit' is not understood"),
        ("printf -v D '%(%F)T' -1\nsbatch -J $D a.sh", 1, "the time is known only where it is run"),
        (
            "trap 'echo $BASH_COMMAND' DEBUG\n[[ $(date) == x ]] && sbatch a.sh",
            1,
            "a trap is set for each command: leave it out",
        ),
        ("seq 3 | awk '{system(\"sbatch a.sh \" $1)}'\nsbatch b.sh", 1, "'awk' is not understood"),
        ("seq 3 | awk '{print $1 > \"x\"}'\nsbatch -a 1 b.sh", 1, "'awk' is not understood"),
        ('awk \'{ print "a;b" > "x" }\' <<< y\nsbatch b.sh', 1, "'awk' is not understood"),
        ("seq 3 | awk -f - <<< x\nsbatch b.sh", 1, "'awk' is not understood"),
        ("seq 3 | sed 's/.*/sbatch fit.sh &/e'\nsbatch b.sh", 1, "'sed' is not understood, and submits a job"),
        ('ls x | sed "s/.*/$CMD &/e"\nsbatch b.sh', 1, "'sed' is not understood"),
        ("sed -n 'w x' <<< y\nsbatch b.sh", 1, "'sed' is not understood"),
        ("X=$(sed 'r x' <<< y)\nsbatch b.sh $X", 1, "'sed' is not understood"),
        ("sed -Ei s/a/b/ b.sh\nsbatch b.sh", 1, "'sed' is not understood"),
        ("sort -o list <<< x\nsbatch b.sh", 1, "'sort' is not understood"),
        ("sort -uolist <<< x\nsbatch b.sh", 1, "'sort' is not understood"),
        ("sort list --output=list\nsbatch b.sh", 1, "'sort' is not understood"),
        ("uniq -f 1 - list <<< x\nsbatch b.sh", 1, "'uniq' is not understood"),
        ("for i in 1 2; do tee a_$i.sh <<E\n#!/bin/sh\nE\nsbatch a_$i.sh; done", 1, "written here, a_1.sh, would be"),
        ("echo $A | tee -a list\nsbatch b.sh", 1, "the file that is written here, list, would be missing"),
        ("J=$(sbatch a.sh)\ntee b.log <<E\n#!/bin/sh\n$J\nE\nsbatch b.log", 2, "written here, b.log, would be"),
        ("set -e\nn=0\nsbatch a.sh\n\n((n++))", 5, "the script ends here, as a command has failed"),
        ("sbatch a.sh\r\n", 1, "its line ends"),
    ],
)
def test_what_is_not_understood_is_refused(
    script: str, line: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_CALLS", 20)
    if script == "while :; do :; done":
        monkeypatch.setattr(recording, "SECONDS", 0.2)
    with pytest.raises(ShellChainError, match=problem) as refused:
        read(script)
    assert refused.value.line == line
    assert not standins.jobs_in(str(refused.value))
    assert not standins.is_marked(str(refused.value))


def test_no_job_is_passed_over_with_the_command_that_writes_its_id() -> None:
    with pytest.raises(ShellChainError, match="line 1: a command is passed over, and with it the job"):
        read("echo $(sbatch --parsable a.sh) >> ids\nsbatch b.sh", ignored=["echo"])
    for call in (
        "nohup sbatch",
        "timeout 9 /usr/bin/sbatch",
        "echo a.sh | xargs -n1 sbatch",
        "sh -c 'cd x && sbatch a'",
    ):
        with pytest.raises(ShellChainError, match=r"line 1: '.*' is not understood, and submits a job"):
            read(f"{call} a.sh\nsbatch b.sh", ignored=["nohup", "timeout", "xargs", "sh"])
    assert one("cp a.sbatch x/sbatch.d\nsbatch b.sh", ignored=["cp"]).script == "b.sh"
    assert one("tee list <<< x\nsbatch b.sh", ignored=["tee"]).script == "b.sh"


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n: > {tmp_path}/made\n")
    (tmp_path / "run.sh").chmod(0o755)
    for script in (
        *("touch F", "/bin/touch F", ": > F", ": >> F", ": >| F", ": &> F", "{ :; } > F", "for i in 1; do :; done > F"),
        *("exec > F", "exec touch F", "tee F", "echo x | tee F", "sed -i s/k/x/ K", "X=$(touch F)", "command touch F"),
        *("rm K", "cp K F", "command -p rm K", "builtin exec rm K", ". R", "source R", "R", "bash R", "enable -f F f"),
        *(
            "env rm K",
            "PATH=/bin touch F",
            "hash -p /bin/rm rm; rm K",
            "set +r; rm K",
            "cat < K > F",
            "trap 'rm K' EXIT",
        ),
        *("sed '1e touch F' <<< x", "sed '1e /bin/touch F' <<< x", "sed s/x/touch/e <<< x", "sed -n 'w F' <<< x"),
        *('sed -n "$Y w F" <<< x', "sort -o F <<< x", "sort -uoF <<< x", "sort --out=F <<< x", "uniq - F <<< x"),
        *(
            "sed -f - <<< 'w F'",
            "sed -nf- <<< 'w F'",
            "sed --file=/dev/stdin <<< 'w F'",
            "awk '/\"/ {print > \"F\"}' <<< '\"'",
        ),
        *('awk \'{ print "a;b" > "F" }\' <<< x', "awk -f - <<< 'BEGIN { system(\"touch F\") }'"),
        *("cat list | sed 's/.*/touch F/e'", "command -- sed '1e /bin/touch F' <<< x"),
    ):
        text = (
            script.replace("F", f"{tmp_path}/made").replace("K", f"{tmp_path}/kept").replace("R", f"{tmp_path}/run.sh")
        )
        with suppress(ShellChainError):
            read(f"{text}\nsbatch a.sh")
        assert sorted(file.name for file in tmp_path.iterdir()) == ["kept", "run.sh"], script
        assert (tmp_path / "kept").read_text() == "kept", script


def test_nothing_in_a_script_gets_round_what_keeps_it_from_acting(tmp_path: Path) -> None:
    for script in (
        *("echo a | awk '{print /;/ | \"/bin/touch MADE\"}'", "echo a | awk '{print /;/ > \"MADE\"}'"),
        "echo a | awk -F -v 'BEGIN {system(\"/bin/touch MADE\")}'",
        *("unset -f awk; awk 'BEGIN {system(\"/bin/touch MADE\")}'", "unset -f sort; sort -o MADE <<< a"),
        "echo a | builtin command awk 'BEGIN {system(\"/bin/touch MADE\")}'",
        'awk() { builtin command awk "$@"; }; awk \'BEGIN {system("/bin/touch MADE")}\'',
        *("builtin kill -0 1 && eval 'sbatch b.sh'", "enable kill; builtin kill -0 1 && eval 'sbatch b.sh'"),
        *("set -o history; history -s a; builtin history -w MADE", "BASH_CMDS[rm]=/bin/rm; rm KEPT"),
    ):
        (tmp_path / "kept").touch()
        text = script.replace("MADE", f"{tmp_path}/made").replace("KEPT", f"{tmp_path}/kept")
        with pytest.raises(ShellChainError):
            read(f"{text}\nsbatch a.sh")
        assert [file.name for file in tmp_path.iterdir()] == ["kept"], script
    # Nor do its variables reach a program.
    assert one(f"LD_DEBUG=all LD_DEBUG_OUTPUT={tmp_path}/made cat <<< a\nsbatch a.sh").script == "a.sh"
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_no_file_of_this_machine_is_read(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a\n")
    for script in (
        *("X=$(<LIST)", "X=$( < 'LIST' )", 'L=LIST; X=$(< "$L")', "X=`<LIST`", 'X="`< LIST`"', "X=$(cat < LIST)"),
        *(
            "read -r X < LIST",
            "mapfile X < LIST",
            "readarray -t X < LIST",
            "exec 7< LIST; read -ru 7 X",
            "sbatch < LIST",
        ),
        *("L=LIST; while read -r X; do sbatch $X.sh; done < $L", "{ read -r X; } < LIST", "sort <LIST | sbatch"),
    ):
        with pytest.raises(ShellChainError, match="list is read, which only the cluster has: write down what is in it"):
            read(f"{script.replace('LIST', str(tmp_path / 'list'))}\nsbatch -J $X a.sh")
    for script in ("X=$(awk 1 LIST)", "X=$(grep -hf/LIST <<< a)", "X=$(sort --files0-from=LIST)"):
        with pytest.raises(ShellChainError, match="is known only on the cluster"):
            read(f"{script.replace('LIST', str(tmp_path / 'list'))}\nsbatch -J $X a.sh")
    with pytest.raises(ShellChainError, match="GLOBIGNORE: readonly"):
        read(f"GLOBIGNORE=; A=({tmp_path}/l*)\nsbatch $A")


PIECES = [
    *(
        "sbatch",
        " x.sh",
        "--parsable",
        " -d afterok:$J",
        "J=",
        "$(",
        ")",
        "`",
        '"',
        "'",
        "\\",
        "$J",
        "${J",
        "##* ",
        "}",
    ),
    *(
        "if ",
        "; then ",
        " else ",
        " fi",
        "for i in ",
        "; do ",
        " done",
        "[ ",
        " ]",
        "[[ ",
        " -z ",
        "!",
        "&&",
        "||",
        "|",
    ),
    *("\n", " ", "#", "<<EOF", "EOF", "<", ">", "&", "=", "+=", "(", ":", ",", "?", "1", "*", ";", "-N", "A[0]", "[@]"),
    *("awk '{print $4}'", "echo", "cd ", "export ", "exit", "set -e", "seq 3", "tr a ", "sed s/a/b/", "cut -f1", "cat"),
    *("{1..3}", "grep -o ", "env ", "test "),
]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_there_is_one_way_to_refuse(script: str) -> None:
    with suppress(ShellChainError):
        stages = read(script)
        assert len({stage.name for stage in stages}) == len(stages)
