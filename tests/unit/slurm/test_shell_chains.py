"""Shell scripts of chained sbatch calls are read as the shell reads them, or refused."""

from __future__ import annotations

import subprocess
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm.chains.reading import read
from airflow_provider_soperator.slurm.chains.stages import After, Stage
from airflow_provider_soperator.slurm.chains.syntax import ShellChainError
from airflow_provider_soperator.slurm.job import BatchJob


def one(text: str, **surroundings: object) -> Stage:
    (stage,) = read(text, **surroundings)  # type: ignore[arg-type]
    return stage


def graph(text: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The stages by name, each with its dependencies: kind and names."""
    return {stage.name: tuple((after.kind, *after.stages) for after in stage.after) for stage in read(text)}


# Whole scripts


def test_a_script_as_manuals_have_it() -> None:
    assert read(r"""#!/bin/bash
# comments
DATA=/data/x
JOB1=$(sbatch --parsable preprocess.sh)
JOB2=$(sbatch --parsable --dependency=afterok:$JOB1 -N 2 \
    train.sh --data "$DATA")   # the large one
sbatch --dependency=afterok:$JOB1:${JOB2},singleton evaluate.sh
""") == (
        Stage("preprocess", 4, script="preprocess.sh"),
        Stage(
            "train",
            5,
            {"nodes": 2},
            script="train.sh",
            args=("--data", "/data/x"),
            after=(After("afterok", ("preprocess",)),),
        ),
        Stage(
            "evaluate",
            7,
            script="evaluate.sh",
            after=(After("afterok", ("preprocess", "train")), After("singleton")),
        ),
    )


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
        "J=$(sbatch a.sh | tr -cd '[:digit:]')\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | tr -d 'A-Za-z ')\nsbatch -d afterok:$J b.sh",
        "J=$(sbatch a.sh | grep -oE '[0-9]+')\nsbatch -d afterok:$J b.sh",
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
    assert one("sbatch < jobs/x.sh").script == "jobs/x.sh"
    assert one("sbatch /dev/stdin a b <<'EOF'\n#!/bin/sh\nEOF").args == ("a", "b")


def test_exported_ids_are_no_variables_of_jobs() -> None:
    _, second = read("export J=$(sbatch --parsable a.sh)\nexport A=1\nsbatch -d afterok:$J b.sh")
    assert second.fields == {"env": {"A": "1"}}


def test_where_it_runs() -> None:
    first, second, third = read("cd exp\nsbatch a.sh\ncd ..\nsbatch b.sh\ncd /abs; sbatch -D sub c.sh")
    assert (first.script, first.fields) == ("exp/a.sh", {"chdir": "exp"})
    assert (second.script, second.fields) == ("b.sh", {})
    assert (third.script, third.fields) == ("/abs/c.sh", {"chdir": "/abs/sub"})
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


def test_jobs_that_are_not_of_the_script() -> None:
    first, second = read(
        "A=$(sbatch --parsable -d after:7+5?afterok:8 a.sh)\nsbatch -d afterok:17:$A,after:$A+5,afterany:18 b.sh"
    )
    assert first.fields == {"dependency": "after:7+5?afterok:8"}
    assert second.fields == {"dependency": "afterok:17,afterany:18"}
    assert second.after == (After("afterok", ("a",)), After("after", ("a",), 5))


def test_what_the_script_takes_from_its_surroundings() -> None:
    script = 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nsbatch -o $HOME/%j "$HERE/x.sh" $1 ${2:-none}'
    stage = one(script, variables={"HERE": "/project", "HOME": "/home/me", "1": "fast"})
    assert (stage.script, stage.args, stage.fields) == ("/project/x.sh", ("fast", "none"), {"output": "/home/me/%j"})
    assert one("A=$(echo 1)\necho $A > log\nsbatch $A.sh", ignored=["echo"]).script == "1.sh"
    assert one('sbatch x.sh "$@"', variables={"@": "a b"}).args == ("a", "b")
    assert one('cd "$(dirname "$0")"\nsbatch x.sh', ignored=["cd"]).script == "x.sh"
    assert one("module load cuda\nmkdir -p logs\nsbatch x.sh", ignored=["module", "mkdir"]).script == "x.sh"


#: Words, and variables before them, for which bash is asked as well.
WORDS = [
    r"""a 'b  c' "d $X" e\ f '' "" $EMPTY "$EMPTY" ${X}y "${Y}"'z'""",
    r"""$LIST "$LIST" pre$LIST${LIST}post x"$LIST"$LIST""",
    r"""${X:-no} ${UNSET:-a b} "${UNSET:-a b}" ${UNSET-'q r'} ${EMPTY:-e} ${EMPTY-e}""",
    r"""${X:+yes} "${UNSET:+no}" ${X+"a b"} ${X+a b} ${UNSET:-$LIST} ${UNSET:-"$LIST"}""",
    r"""${PATHS##*/} ${PATHS#*/} ${PATHS%/*} ${PATHS%%/*} ${PATHS%.*} ${PATHS//\//-}""",
    r"""${PATHS/b?/X} ${PATHS//[a-c]/_} ${PATHS//[!a-c]/} "${LIST##*" "}" ${LIST% }""",
    r"""$(echo a   b) "$(echo "a   b")" `echo $X` "`echo \"$X\"`" $(echo -n x)y $(echo "$(echo deep)")""",
    r"""{1..3} {03..1} {10..90..30} {5..1..2} "{1..2}" \$X '$X' "\$X \" \\ \a" $ a\
b # not this""",
    r"""$(seq 2 2 6) "$(seq 2)" $(seq 3 | tail -1) $(seq 3 | head -n 1)""",
    r"""$(echo "Submitted batch job 12" | awk '{print $4}') $(echo 1-2-3 | cut -d- -f2) $(echo a1b2 | tr -d 0-9)""",
    r"""$(echo 'a b' | tr ' ' ':') $(echo x12y | sed 's/[a-z]//g') $(echo x12y3 | grep -o '[0-9]*')""",
    r"""$(echo 'job 12' | sed -E 's/.* ([0-9]+)/<\1>/') $(echo 'job 12' | sed 's/job \(.*\)/&\1/')""",
    r"""$([ -n "$X" ] && echo set) $([ "$X" = y ] || echo other) $(! [ x = y ] && echo not)""",
    r"""$A ${A+set} ${A[9]-unset} ${#A[@]} ${#PATHS}""",
    r"""${A[@]} "${A[@]}" "${A[*]}" ${A[1]} "x${A[0]}" "$(IFS=:; echo "${A[*]}")" ${NONE[@]}""",
    r"""$(if [ 1 -lt 2 ]; then echo less; else echo; fi) "$(for i in a b; do echo $i; done)" $([[ $EMPTY ]] || echo)""",
]
BEFORE = """X=x; Y='a  b'; EMPTY=; LIST=' one  two '; PATHS=a/b.c/b.d; X+=1; NONE=()
A=("a b" $X); A+=(
    c # not this
)
"""


@pytest.mark.parametrize("words", WORDS)
def test_words_are_what_bash_makes_of_them(words: str) -> None:
    bash = subprocess.run(
        ["bash", "-c", f'{BEFORE}set -- x.sh {words}\nprintf "%s\\0" "$@"'], capture_output=True, text=True, check=True
    )
    stage = one(f"{BEFORE}sbatch x.sh {words}")
    assert [stage.script, *stage.args] == bash.stdout.split("\0")[:-1]


# What is refused


@pytest.mark.parametrize(
    ("script", "line", "problem"),
    [
        ("sbatch a.sh\nmkdir -p logs", 2, r"'mkdir' is not understood, .*ignored=\['mkdir'\]"),
        ("J=$(get_id $(sbatch a.sh))", 1, "'get_id' is not understood"),
        ("X=$(./submit.sh)", 1, "'./submit.sh' is not understood"),
        ("J=$(ssh login sbatch a.sh)", 1, "'ssh' is not understood"),
        ("sbatch a.sh | mail me", 1, "'mail' is not understood"),
        ("sbatch a.sh | awk '{x=$4} END {print x}'", 1, "this use of awk"),
        ("sbatch a.sh | sed -i s/a/b/", 1, "this use of sed"),
        ("\nwhile true; do sbatch a.sh; done", 2, "`while` is not understood"),
        ("case $1 in a) sbatch a.sh;; esac", 1, "`case` is not understood"),
        ("for ((i=0; i<3; i++)); do sbatch a.sh; done", 1, "this form of `for`"),
        ("for i; do sbatch a.sh; done", 1, "`for` without `in`"),
        ("for f in *.sh; do sbatch $f; done", 1, r"'\*.sh' is a pattern for files"),
        ("submit() { sbatch a.sh; }", 1, "a function, or an array in this place, is not understood"),
        ("declare -r IDS=(a b)", 1, "a function, or an array in this place, is not understood"),
        ('A=(*.sh)\nsbatch "${A[0]}"', 2, r"\$A\[0\] is not known \(line 1: '\*.sh' is a pattern for files"),
        ("A=(a b)\nsbatch ${A[2]}", 2, r"\$A\[2\] is not set"),
        ("A=(a b)\nfor i in ${!A[@]}; do sbatch a.sh; done", 2, "is not understood"),
        ("(cd x; sbatch a.sh)", 1, "a shell of its own"),
        ("sbatch a.sh &", 1, "`&` starts a command beside"),
        ("sbatch a$((1+2)).sh", 1, "arithmetic"),
        ("sbatch {a,b}.sh", 1, "the braces in"),
        ("sbatch ~/a.sh", 1, "home folder"),
        ("sbatch $'a\\n'", 1, r"\$' is not understood"),
        ("sbatch a.sh || sbatch b.sh", 1, "whether this runs is known only on the cluster"),
        ("if [ -f x ]; then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("if [ -f x ]; then echo y; else sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("[ -f x ] && sbatch a.sh", 1, "whether this runs is known only on the cluster"),
        ("sbatch $1", 1, r"\$1 is an argument of the script: .*variables={'1': ...}"),
        ("sbatch -o $HOME/x a.sh", 1, r"\$HOME is not set in the script"),
        ("X=$(date)\n\nsbatch a.sh $X", 3, r"\$X is not known \(line 1: "),
        ("X=$(echo $NONE | tr ' ' ,)\n\nsbatch a.sh $X", 3, r"\$X is not known \(line 1: \$NONE is not set"),
        ("export X=$(pwd)\nsbatch a.sh", 2, "the job would get X of line 1"),
        ("X=$(sbatch $UNKNOWN)", 1, r"\$UNKNOWN is not set"),
        ('echo "$UNKNOWN $(sbatch a.sh)"', 1, r"\$UNKNOWN is not set"),
        ('cd "$(dirname "$0")"', 1, r"ignored=\['cd'\]"),
        ("cd -", 1, "'cd' is not understood"),
        ("set -a\n", 1, "set -a is not understood"),
        ("export SBATCH_PARTITION=main\nsbatch a.sh", 2, "SBATCH_PARTITION changes what sbatch does"),
        ("cat > a.sh <<EOF\n#!/bin/sh\nEOF\nsbatch a.sh", 1, "the file that cat writes would be missing"),
        ("echo x $UNKNOWN > a.sh", 1, "the file that echo writes would be missing"),
        ("sbatch <<EOF\n#!/bin/sh\necho $SLURM_JOB_ID\nEOF", 3, r"\$SLURM_JOB_ID is not set"),
        ("sbatch <<EOF\n#!/bin/sh", 1, "the here-document has no end 'EOF'"),
        ("sbatch 'a", 1, "' has no other half"),
        ("J=$(sbatch a.sh", 1, r"\$\( has no other half"),
        ("if true; then sbatch a.sh", 1, "`fi` is missing"),
        ("done", 1, "`done` closes nothing"),
        ("sbatch", 1, "sbatch is given no script"),
        ("sbatch --wrap=true a.sh", 1, "--wrap and a script"),
        ("sbatch --wait a.sh", 1, "--wait cannot be used"),
        ("sbatch --nodes", 1, "--nodes needs a value"),
        ("sbatch --ntasks=two a.sh", 1, "--ntasks: 'two' is no whole number"),
        ("sbatch --of-a-plugin a.sh", 1, "--of-a-plugin is no option that is known here"),
        ("sbatch <<'EOF'\n#!/bin/sh\n#SBATCH -y\nEOF", 1, "mistake in its line 2: there is no option -y"),
        ("J=$(sbatch a.sh)\nsbatch -d afterok:$J b.sh", 2, "sbatch's whole message in place of an id"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d afterok:$J?afterok:$J b.sh", 2, r"'\?' in a dependency"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d afterok:${J}_3 b.sh", 2, "something behind the id"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d afterok::$J b.sh", 2, "'' is no job id"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d $J b.sh", 2, "is no kind of dependency"),
        ("J=$(sbatch --parsable a.sh)\nsbatch -d afterall:$J b.sh", 2, "'afterall' is no kind of dependency"),
        ("J=$(sbatch --parsable a.sh)\nsbatch b.sh --dependency=afterok:$J", 2, "an option stands after the script"),
        ("J=$(sbatch --parsable a.sh)\nsbatch b.sh $J", 2, "the id of a job is used for something else"),
        ('J=$(sbatch --parsable a.sh)\nsbatch --wrap "scancel $J"', 2, "the id of a job is used for something else"),
        ("J=$(sbatch --parsable a.sh)\nJ=$J sbatch b.sh", 2, "the id of a job is used for something else"),
        ("J=$(sbatch --parsable a.sh)\nsbatch --export=J=$J b.sh", 2, "the id of a job is used for something else"),
        ("if grep -q x config; then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("if X=$(cat config); then sbatch a.sh; fi", 1, "whether this runs is known only on the cluster"),
        ("ls a.sh\nif [ $? -eq 0 ]; then sbatch a.sh; fi", 2, "whether this runs is known only on the cluster"),
        ("ls a.sh && sbatch a.sh", 1, "whether this runs is known only on the cluster"),
        ("X=$([ -f x ] && echo y)\nsbatch a.sh $X", 2, r"\$X is not known"),
        ("X=$(if [ -f x ]; then echo y; fi)\nsbatch a.sh $X", 1, "what this prints is known only on the cluster"),
        ("[ -f x ] || echo y > a.sh", 1, "whether this runs is known only on the cluster"),
        ("sbatch a.sh\r\n", 1, "its line ends"),
    ],
)
def test_what_is_not_understood_is_refused(script: str, line: int, problem: str) -> None:
    with pytest.raises(ShellChainError, match=problem) as refused:
        read(script)
    assert refused.value.line == line
    assert "\U000f0000" not in str(refused.value)


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


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_there_is_one_way_to_refuse(script: str) -> None:
    with suppress(ShellChainError):
        stages = read(script)
        assert len({stage.name for stage in stages}) == len(stages)
