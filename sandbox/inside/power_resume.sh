#!/bin/bash
# slurmctld's ResumeProgram: asks for the Pods of these nodes, and waits until the request is on record.
set -euo pipefail
# slurmctld throws away what its programs say; the log of its Pod keeps it.
exec >>/proc/1/fd/2 2>&1
manager=/opt/soperator/bin/power-manager
"$manager" resume -nodes "$1"
"$manager" wait-added -nodes "$1" -timeout 10
