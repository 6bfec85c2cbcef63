#!/bin/bash
# slurmctld's PrologSlurmctld: ends once the job's nodes have booted, or have failed to.
# A job that waits for nodes is looked at again when this ends; without it only every 30 s, a timer that no setting
# shortens. On a cluster whose nodes take minutes nobody notices; here it would be most of the wait.
deadline=$((SECONDS + 600))
while [ "$SECONDS" -lt "$deadline" ]; do
    # %t marks a node that is powering up with "#", and one that is still off with "~"; one that has failed to boot
    # is "down~", and nobody ends this for its job.
    states=$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format=%t)
    grep -v '^down' <<<"$states" | grep -q '[#~]' || exit 0
    sleep 0.2
done
exit 0
