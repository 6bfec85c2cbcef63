#!/bin/bash
# slurmctld's SuspendProgram: gives up the Pods of these nodes, and waits until that is on record.
set -euo pipefail
manager=/opt/soperator/bin/power-manager
"$manager" suspend -nodes "$1"
"$manager" wait-removed -nodes "$1" -timeout 10
