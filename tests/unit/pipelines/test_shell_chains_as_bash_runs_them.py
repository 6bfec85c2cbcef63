"""Shell scripts of chained sbatch calls are read as bash runs them, with an sbatch that only records."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from airflow_provider_soperator.pipelines.chains import standins
from airflow_provider_soperator.pipelines.chains.reading import read

#: Keeps its folder, its words and what it reads, and has 1000 and the following numbers as ids.
SBATCH = """#!/bin/bash
id=$((1000 + $(ls "$CALLS" | wc -l)))
printf '%s\\0' "${PWD#"$HERE"}" "$@" >"$CALLS/$id"
case " $* " in *.sh\\ * | *--wrap*) ;; *) cat >>"$CALLS/$id" ;; esac
case " $* " in *--parsable*) echo "$id" ;; *) echo "Submitted batch job $id" ;; esac
"""

SCRIPTS = {
    "stages of a simulation": """
declare -A TIME=([em]=00:30:00 [nvt]=02:00:00 [md]=48:00:00)
prev=""
for step in em nvt md; do
  dep=""
  if [[ -n "$prev" ]]; then dep="--dependency=afterok:$prev"; fi
  prev=$(sbatch --parsable $dep --job-name="gmx_$step" --time="${TIME[$step]}" <<EOT
#!/bin/bash
gmx mdrun -deffnm ${step} -ntomp \\$SLURM_CPUS_PER_TASK > /dev/null 2>&1
[[ ! -f $step.gro ]] || exit 1
EOT
)
done
""",
    "a function that submits": """
submit() {
  local name=$1 deps=$2 out; shift 2
  local opt=()
  if [ -n "$deps" ]; then opt+=(--dependency="afterok:$deps"); fi
  if ! out=$(sbatch "${opt[@]}" --job-name="$name" "$@"); then echo "not $name" >&2; exit 1; fi
  echo "${out##* }"
}
p=$(submit prep "" prep.sh)
deps=()
for seed in 1 2 3; do deps+=("$(submit "train $seed" "$p" train.sh --seed $seed)"); done
submit eval "$(IFS=:; echo "${deps[*]}")" eval.sh > /dev/null
""",
    "options and arguments": """
nodes=1 part=main
while getopts "n:p:h" opt; do
  case $opt in n) nodes=$OPTARG ;; p) part=$OPTARG ;; h) exit 0 ;; *) exit 1 ;; esac
done
shift $((OPTIND - 1))
[ "$1" = -h ] && exit 0
for one; do sbatch -N $nodes -p $part --time=$((nodes * 10)):00 train.sh "$one" "${2:-none}"; done
""",
    "ids out of messages": """
A=$(sbatch a.sh | awk '{print $NF}')
B=$(sbatch -d afterok:$A b.sh | grep -oE '[0-9]+$')
C=$(sbatch c.sh 2>&1 | tee -a log | sed 's/.* //')
grep -q "$C" <<< "$A $B $C" || exit 1
last=$(printf '%s\\n' $A $C $B | sort -n | tail -1)
sbatch -d "$(printf 'afterok:%s,' $A $B | sed 's/,$//')" d.sh
sbatch --dependency=afterany:$last e.sh
""",
    "lists and loops": """
LIST="s1,yes
s2,no
s3,yes"
echo "$LIST" | awk -F, '$2 == "yes" {print $1}' | while read -r s; do sbatch -J $s a.sh; done
while IFS=, read -r s keep; do
  [[ $keep == yes ]] || continue
  n=$(echo "$s" | tr -dc 0-9)
  sbatch --array=1-$n%2 b.sh "${s^^}" "${s/s/x}"
done <<< "$LIST"
for f in x.one.in x.two.in; do base=${f%.in}; sbatch -o "${f/.in/.out}" a.sh "${base##*.}"; done
(cd data && sbatch ../a.sh)
ids=$(for i in {1..2}; do sbatch --parsable a.sh $i; done | paste -sd:)
sbatch -d afterok:$ids --wrap "cat *.csv" 2>/dev/null || exit 2
""",
    "what the cluster has": """
command -v sbatch > /dev/null || { echo "no Slurm" >&2; exit 1; }
[[ -d data ]] || exit 1
[[ ! -f missing ]] && echo "nothing of before"
if [ ! -e data ]; then echo "$(date): no data"; exit 1; fi
A=$(sbatch --parsable a.sh)
squeue -h -j $A | wc -l
sbatch -d afterok:$A b.sh
""",
}


def as_run(script: str, here: Path, arguments: list[str]) -> list[tuple[str, list[str]]]:
    """The calls of a script: the folder of each, and its words with its script's text."""
    calls, programs = here / "calls", here / "programs"
    for folder in (calls, programs, here / "here" / "data"):
        folder.mkdir(parents=True)
    for name, text in (("sbatch", SBATCH), ("squeue", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    given = {"PATH": f"{programs}:/usr/bin:/bin", "CALLS": str(calls), "HERE": str(here / "here")}
    subprocess.run(["bash", "-c", script, "run", *arguments], cwd=here / "here", env=given, check=True)
    found = [file.read_text().split("\0") for file in sorted(calls.iterdir())]
    return [(folder.lstrip("/"), words) for folder, *words in found]


def as_read(script: str, arguments: list[str]) -> list[tuple[str, list[str]]]:
    variables = {str(number): one for number, one in enumerate(arguments, start=1)} or {"@": ""}
    found = []
    for call in read(script, variables=variables):
        text = "\0".join([*call.words, call.stdin or ""])
        text = re.sub(rf"{standins.PREFIX}\d{{12}}", lambda id_: str(1000 + standins.jobs_in(id_[0])[0]), text)
        found.append((call.folder, text.split("\0")))
    return found


@pytest.mark.parametrize("options", ["", "set -e\n", "set -euo pipefail\n", "shopt -s nullglob\n"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_read_as_bash_runs_it(name: str, options: str, tmp_path: Path) -> None:
    script, arguments = options + SCRIPTS[name], ["-n", "2", "x", "y z"] if "arguments" in name else []
    run = as_run(script, tmp_path, arguments)
    assert len(run) > 1
    assert as_read(script, arguments) == run
