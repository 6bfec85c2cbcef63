# shellcheck shell=bash disable=SC2154 # see keyed_jobs.bash
# The program of CancelWithdrawn on the cluster.
lock=${HOME:-/tmp}/.cache/airflow-soperator
withdrawals=$lock/withdrawn
compgen -G "$withdrawals/[a-z2-7]*" >/dev/null || has_renamed || exit 0
work=$(mktemp -d) || exit 1
trap 'rm -rf -- "$work"' EXIT
# The program that has the lock does the same in the end.
exec 9>>"$lock/submit.lock" && flock -n 9 || exit 0
queue || { status=$?; cat "$work/err" >&2; exit "$status"; }
cancel_withdrawn
