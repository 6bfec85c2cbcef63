#!/bin/bash
# slurmctld's PrologSlurmctld: ends once the job's nodes have booted, or have failed to.
# A job that waits for nodes is looked at again when this ends; without it only every 30 s, a timer that no setting
# shortens. On a cluster whose nodes take minutes nobody notices; here it would be most of the wait.

# %t marks a node that is powering up with "#", and one that is still off with "~"; one that has failed to boot is
# "down~", and nobody ends this for its job.
are_booting() {
    states=$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format=%t)
    [[ ${states//down[#~]/} == *[#~]* ]]
}

are_booting || exit 0
# Many jobs wait so, some for minutes: each `sleep` would be a process, and each look is one.
exec 9<> <(:)
pause=2
while [ "$SECONDS" -lt 600 ]; do
    read -rt "0.$pause" -u 9 || :
    are_booting || exit 0
    pause=$((pause < 9 ? pause + 1 : 9))
done
exit 0
