#!/bin/bash
# slurmctld's ResumeFailProgram: a node that did not come up in time must not hold a Pod, or the Pod a machine.
exec /opt/soperator/bin/power_suspend.sh "$1"
