# shellcheck shell=bash
# Makes an executor's folder on the cluster, and prints its path and that of the Python which has Airflow.
# Arguments: the folder, the Python or nothing, Airflow's version, a name for the environment, days to keep files.
# Input: the packages of the environment, one a line.
set -e
root=$1 python=$2 airflow=$3 name=$4 keep=$5
# What is wrong, and the remedy.
die() { printf '%s\t%s\n' "$1" "$2" >&2; exit 1; }
case $root in /*) ;; *) root=$PWD/$root ;; esac
mkdir -p "$root"
# Only its owner may read tokens.
chmod 700 "$root"
mkdir -p "$root/tasks" "$root/output" "$root/environments"
# Tasks that end, and other schedulers, remove files meanwhile.
find "$root/tasks" "$root/output" ! -type d -mtime "+$keep" -delete || true
packages=$(cat)
if [ -z "$python" ]; then
    # A wheel that was built anew is another one.
    wheels=$(while read -r package; do [ ! -f "$package" ] || sha256sum "$package"; done <<<"$packages")
    [ -z "$wheels" ] || name+=-$(sha256sum <<<"$wheels" | head -c 16)
    made=$root/environments/$name python=$root/environments/$name/bin/python
    # Its time is that of the last use.
    touch "$made.lock"
    exec 9>>"$made.lock"
    flock 9
    if [ ! -e "$made/complete" ]; then
        remedy="see the other lines; if a package fails, list others in executor_packages, or set executor_python"
        trap 'die "the venv cannot be made" "$remedy"' ERR
        rm -rf "$made"
        version=${name%%-*}
        base=$(command -v "python$version" || command -v python3) ||
            die "there is no python$version on the login node" "install it, or set executor_python"
        if command -v uv >/dev/null; then
            uv venv --quiet --python "$base" "$made" >&2
            uv pip install --quiet --compile-bytecode --python "$python" -r <(echo "$packages") >&2
        else
            "$base" -m venv "$made" >&2
            "$python" -m pip install --quiet --disable-pip-version-check -r <(echo "$packages") >&2
        fi
        touch "$made/complete"
        trap - ERR
    fi
fi
# What no scheduler has used for as long has no jobs any more.
find "$root/environments" -maxdepth 1 -name '*.lock' -mtime "+$keep" | while read -r lock; do
    ( flock -n 8 && rm -rf "${lock%.lock}" ) 8<"$lock" || true
done
[ -x "$python" ] || die "there is no Python $python" "correct executor_python"
found=$("$python" -c 'from importlib.metadata import version; print(version("apache-airflow-core"))' 2>/dev/null) ||
    die "$python has no Airflow" "install apache-airflow-core==$airflow there"
[ "${found%.*}" = "${airflow%.*}" ] ||
    die "$python has Airflow $found, and the scheduler has $airflow" "install the same there"
printf '%s\n' "$root" "$python"
