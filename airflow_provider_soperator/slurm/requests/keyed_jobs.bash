# shellcheck shell=bash disable=SC2154,SC2034 # the programs that begin with this set and use the other variables
# The user's jobs by their keys, and those that are withdrawn and still there.

# Reads lines of the queue that are like a pattern, or of accounting; the lowest id of each key is the one that counts.
learn() {
    local id said name key one list
    while read -r id said; do
        # shellcheck disable=SC2053 # a pattern
        [[ $id == *"$mark" && $said == ${2:-*} ]] || continue
        name_of "$said"
        [[ $name == *.af-* ]] || continue
        id=${id%"$mark"} key=${name##*.af-}
        if [[ -n ${shared[$key]} && $id == *_* ]]; then
            elements_of "${id#*_}"
            for one in "${list[@]}"; do note "${key}_$one" "${id%%_*}_$one"; done
        else
            # The id of the whole array or heterogeneous job.
            note "$key" "${id%%[_+]*}"
        fi
    done <"$1"
}
# Of what follows the id: a state, the name and a comment, or the name alone.
name_of() { name=${1#*"$mark "} name=${name%%"$mark"*}; }
note() { [[ -n ${known[$1]} && ${known[$1]%_*} -le ${2%_*} ]] || known[$1]=$2; }
# Pending elements are one entry of the queue, as [0-3,8-16:4%2].
elements_of() {
    local pieces piece step one
    list=()
    piece=${1#[} piece=${piece%]}
    IFS=, read -r -a pieces <<<"${piece%%%*}"
    for piece in "${pieces[@]}"; do
        step=1
        [[ $piece != *:* ]] || { step=${piece#*:} piece=${piece%:*}; }
        for ((one = ${piece%-*}; one <= ${piece#*-}; one += step)); do list+=("$one"); done
    done
}
# What a command prints, as a file; false also if that has no room for all of it, which Slurm's commands do not notice.
print_to() {
    local file=$1
    "${@:2}" 2>"$work/err" </dev/null | cat >"$file"
    return $((PIPESTATUS[0] | PIPESTATUS[1]))
}
# The queue has jobs that accounting lacks: those that were never eligible, and those of the last seconds. Comments come
# last, as they may have several lines.
queue() {
    SLURM_BITSTR_LEN=0 print_to "$work/queue" \
        squeue --all --states=all --me --noheader --format="%i$mark %T$mark %j$mark %k"
}
unfinished='@(PENDING|CONFIGURING|RUNNING|SUSPENDED|STOPPED|COMPLETING|REQUEUED|RESIZING|SIGNALING|STAGE_OUT|SPECIAL_EXIT'
unfinished+='|EXPEDITING|REQUEUE_FED|REQUEUE_HOLD|RESV_DEL_HOLD)'
joined() { local IFS=,; echo "$*"; }
# Jobs by their new names are held and lose their keys, so that none starts as another ends, and the next try finds none
# of them. A note of each is left, by which it is cancelled if this ends before.
rename() {
    local id name
    local -A ids=()
    for id in "${!renamed[@]}"; do
        name=${renamed[$id]}
        printf %s "$name" >"$withdrawals/.renamed.$id"
        ids[$name]+=,$id
    done
    "$@" scontrol hold "$(joined "${!renamed[@]}")"
    for name in "${!ids[@]}"; do "$@" scontrol update JobId="${ids[$name]#,}" JobName="$name"; done
}
has_renamed() { compgen -G "$withdrawals/.renamed.*" >/dev/null; }
quietly() { "$@" >/dev/null 2>&1 </dev/null; }
# The process that was told to end a job may not have lived to see that done.
cancel_withdrawn() {
    local file id said key name ended=()
    local -A wanted=() shared=() known=() renamed=() called=()
    for file in "$withdrawals"/*; do
        key=${file##*/}
        [[ $key =~ ^[a-z2-7]{12}(_[0-9]+)?$ ]] || continue
        wanted[$key]=yes
        [[ $key != *_* ]] || shared[${key%_*}]=yes
    done
    [ ${#wanted[@]} -gt 0 ] || has_renamed || return 0
    learn "$work/queue" "$unfinished$mark *"
    for key in "${!wanted[@]}"; do
        # Where it has the new name of its job, other submissions have the same key.
        [[ -n ${known[$key]} && -s $withdrawals/$key ]] || continue
        renamed[${known[$key]}]=$(<"$withdrawals/$key")
    done
    if [ ${#renamed[@]} -gt 0 ]; then
        rename quietly
        # An error does not tell which of them have the new name.
        queue || return 0
    fi
    if has_renamed; then
        while read -r id said; do
            [[ $id == *"$mark" && $said == $unfinished"$mark "* ]] || continue
            name_of "$said"
            id=${id%"$mark"} called[${id%%[_+]*}]=$name
        done <"$work/queue"
        for file in "$withdrawals"/.renamed.*; do
            id=${file##*.}
            if [ "${called[$id]}" = "$(<"$file")" ]; then ended+=("$id"); else rm -f -- "$file"; fi
        done
    fi
    # At the last moment: another try may have made one void since, to go on with its job.
    for key in "${!wanted[@]}"; do
        [[ -z ${known[$key]} || -n ${renamed[${known[$key]}]} || ! -e $withdrawals/$key ]] || ended+=("${known[$key]}")
    done
    [ ${#ended[@]} -eq 0 ] || quietly scancel "${ended[@]}"
    # By now no program is left that they could meet.
    find "$withdrawals" -type f -mmin +"$keep" -printf '%f\n' | while read -r key; do
        [ -n "${known[$key]}" ] || rm -f -- "$withdrawals/$key"
    done
}
