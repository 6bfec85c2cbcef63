#!/bin/bash
# slurmctld's ResumeProgram: asks for the Pods of these nodes, and waits until the request is on record.
set -euo pipefail
manager=/opt/soperator/bin/power-manager
"$manager" resume -nodes "$1"
"$manager" wait-added -nodes "$1" -timeout 10
