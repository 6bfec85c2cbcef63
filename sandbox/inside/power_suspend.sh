#!/bin/bash
# slurmctld's SuspendProgram: gives up the Pods of these nodes, and waits until that is on record.
set -euo pipefail
# slurmctld throws away what its programs say; the log of its Pod keeps it.
exec >>/proc/1/fd/2 2>&1
hosts=$(scontrol show hostnames "$1")
mapfile -t hosts <<<"$hosts"
exec /opt/soperator/bin/power-manager suspend 10 "${hosts[@]}"
