# shellcheck shell=bash disable=SC2034,SC2154 # keyed_jobs.bash uses some, and `field` sets variables by their names
# The program of SubmitOnce on the cluster; its input is fields that end in NUL.
#
# It prints a line for each job: its number, the outcome, and its id or error.

# The connection may be gone; a submission that has begun is completed nevertheless.
trap '' HUP PIPE
work=$(mktemp -d) || exit 1
begun='' files=$work
trap 'rm -rf -- "$work" "$files" ${begun:+"$begun"}' EXIT
# From a file bash reads in blocks, from a pipe byte by byte.
cat >"$work/in" && exec 8<"$work/in" || exit 1
# The small files of each job take a third of the time if they are in memory, which may have little room.
if [ "$(stat -c %s "$work/in")" -lt 8000000 ]; then files=$(mktemp -d -p /dev/shm 2>/dev/null) || files=$work; fi
field() { IFS= read -r -d '' -u 8 "$1"; }
fields() {
    local count number one
    field count
    list=()
    for ((number = 0; number < count; number++)); do field one; list+=("$one"); done
}
field patience; field work_time; field keep
field mark; field fresh; field together; field held_note; field withdrawn_suffix
field unknown; field passing; field limits; field gone
# The keys that mapped tasks share: of jobs with these each element of an array has a key of its own.
declare -A known shared
fields; for key in "${list[@]}"; do shared[$key]=yes; done
field pasts
for ((part = 0; part < pasts; part++)); do fields; printf '%s\0' "${list[@]}" >"$work/past.$part" || exit 74; done
field count

# With it sbatch ends as late as the job, and as it does.
unset SBATCH_WAIT
lock=${HOME:-/tmp}/.cache/airflow-soperator
withdrawals=$lock/withdrawn
# shellcheck disable=SC2015,SC2174 # whichever of them fails, there is no lock
mkdir -p -m 700 "$lock" "$withdrawals" && begun=$(mktemp "$withdrawals/.begun.XXXXXXXX") &&
    exec 9>>"$lock/submit.lock" && flock -w "$patience" 9 ||
    { echo "the lock $lock/submit.lock was not free within $patience s, or cannot be used" >&2; exit 75; }

# Jobs that are held until their joint submission is complete.
declare -A held
learn_held() {
    local id said name
    held=()
    while read -r id said; do
        [[ $said == $unfinished"$mark "*.af-*"$mark $held_note" ]] || continue
        name_of "$said"
        held[${name##*.af-}]=yes
    done <"$work/queue"
}
# Unfinished jobs by their names without keys, as ":1:2"; those of this submission are added.
declare -A alike
names_learnt=
learn_names() {
    local id said name
    [ -z "$names_learnt" ] || return 0
    names_learnt=yes
    while read -r id said; do
        [[ $id == *"$mark" && $said == $unfinished"$mark "* ]] || continue
        name_of "$said"
        id=${id%"$mark"} id=${id%%[_+]*}
        [[ $name =~ \.af-[a-z2-7]{12}(_[0-9]+)?$ ]] && name=${name%.af-*}
        [[ ${alike["=$name"]}: == *":$id:"* ]] || alike["=$name"]+=:$id
    done <"$work/queue"
}
# Change jobs; an error about a job that has ended is ignored, any other ends the program, to be retried. If elements of
# an array have ended, scontrol's hold and release also tell of the others, for which there is "No error".
change() {
    local status
    "$@" >"$work/out" 2>"$work/err" </dev/null && return
    status=$?
    if [ -s "$work/err" ] && ! grep -Eiv -- "$gone|: No error$" "$work/err" >"$work/left"; then return; fi
    cat "$work/left" >&2
    exit "$status"
}
# Both times are those of one file system, whatever the clocks of login nodes.
is_withdrawn() { [ "$withdrawals/$1" -nt "$begun" ]; }
queue || { status=$?; cat "$work/err" >&2; exit "$status"; }
learn "$work/queue"
if [ "$fresh" = no ]; then
    # To root and operators sacct shows the jobs of all users, and anybody can give a job this name.
    # shellcheck disable=SC2054 # sacct's comma
    format=(--user="$EUID" --noheader --parsable2 --delimiter="$mark " --format=jobid,jobname)
    before=${#known[@]}
    for ((part = 0; part < pasts; part++)); do
        mapfile -d '' -t past <"$work/past.$part"
        if print_to "$work/past" "${past[@]}" "${format[@]}"; then
            learn "$work/past"
        elif grep -qi 'accounting storage is disabled' "$work/err"; then
            break
        else
            cat "$work/err" >&2
            exit 69
        fi
    done
    # A job in accounting only may have lost a race on another login node: then the winner is in the queue.
    if [ ${#known[@]} -gt "$before" ] && queue; then learn "$work/queue"; fi
fi

# A few at a time: most of a submission is waiting, here for sbatch to start and there for slurmctld.
submitted=() under_way=() refused=
# By key: the ids of jobs that were submitted here.
declare -A new
[ "$together" != end ] || refused=yes
# Sets the id that sbatch has printed, after lines of its plugins. It may fail nevertheless: with --wait, as the job does.
is_accepted() {
    local said
    mapfile -t said <"$2"
    id=${said[*]: -1} id=${id%%;*}
    [[ $1 = 0 || $id =~ ^[0-9]+$ ]]
}
settle() {
    local one item key process status id
    for one in "${under_way[@]}"; do
        read -r item key process <<<"$one"
        wait "$process"
        status=$?
        if is_accepted "$status" "$files/out.$item"; then
            known[$key]=$id new[$key]=$id
            alike["=${names[$item]}"]+=:$id
            submitted+=("$item $key $id")
        elif [ -n "$together" ] && grep -Eiq -- "$passing" "$files/err.$item"; then
            # Not rejected: the next try continues from here.
            cat "$files/err.$item" >&2
            wait
            exit "$status"
        else
            refuse "$item" "$status" "$files/err.$item"
        fi
    done
    under_way=()
}
refuse() { echo "$1 failed $2 $(base64 -w0 <"$3")"; refused=yes; }
# True if slurmctld was killed since, and has forgotten a job: another may have its number now, even one of these.
is_forgotten() {
    local line key
    local -A known=()
    learn "$work/queue"
    for line in "${submitted[@]}"; do
        read -r _ key _ <<<"$line"
        [ -n "${known[$key]}" ] || return 0
    done
    return 1
}
# Replaces keys by ids.
resolve() {
    local key
    resolved=$1
    for key in $2; do resolved=${resolved//":$key"/":${known[$key]}"}; done
}
is_under_way() {
    local one
    for one in "${under_way[@]}"; do [ "${names[${one%% *}]}" != "$1" ] || return 0; done
    return 1
}

# As for an array: 0 1 2 7 is 0-2,7.
folded() {
    local one from='' to=''
    for one; do
        if [[ -n $to && $one -eq $((to + 1)) ]]; then to=$one; continue; fi
        [ -z "$to" ] || printf %s "$from${to:+-$to},"
        from=$one to=$one
    done
    printf %s "$from${to:+-$to}"
}
# From the job's own folder, if there is one: scripts go back to SLURM_SUBMIT_DIR.
submit() {
    [ -z "$folder" ] || cd -- "$folder" 2>/dev/null || :
    exec "${argv[@]}"
}
# Submits the elements of the array that are left. Where a limit refuses so many, one tells if there is room for any,
# and then as many follow as are accepted.
submit_elements() {
    local left=("$@") size=$# trend='' file=$files/array.$item one id status
    while [ ${#left[@]} -gt 0 ]; do
        argv[array_place]=--array=$(folded "${left[@]:0:size}")
        (submit) <"$files/body.$item" >"$file.out" 2>"$file.err"
        status=$?
        if is_accepted "$status" "$file.out"; then
            for one in "${left[@]:0:size}"; do
                known[${key}_$one]=${id}_$one
                submitted+=("${item}_$one ${key}_$one ${id}_$one")
            done
            left=("${left[@]:size}")
            case $trend in up) size=$((size * 2)) ;; down) size=$(((size + 1) / 2)) ;; esac
        else
            if [ "$size" -gt 1 ] && grep -Eiq -- "$limits" "$file.err"; then
                if [ -z "$trend" ]; then trend=up size=1; else trend=down size=$(((size + 1) / 2)); fi
                continue
            fi
            for one in "${left[@]}"; do refuse "${item}_$one" "$status" "$file.err"; done
            return
        fi
    done
}
# Prints what is known of one job, and is false if that is to be submitted.
is_settled() {
    local which=$1 own=$2
    if is_withdrawn "$own"; then
        echo "$which withdrawn -"
        [ -z "$together" ] || refused=yes
        return 0
    fi
    # What was withdrawn before is begun anew. One who ends it has yet to do that, and may meet a program that waits.
    [[ $together == end || ! -e $withdrawals/$own ]] || rm -f -- "$withdrawals/$own"
    if [ -n "${known[$own]}" ]; then
        echo "$which adopted ${known[$own]}"
        return 0
    fi
    # The next request continues here. What is submitted together must not be left half done. For a full queue sbatch
    # tries for two minutes before it refuses a job.
    if [[ -z $together && -n "${submitted[*]}$refused" && $SECONDS -ge $deadline ]]; then
        echo "$which left -"
        return 0
    fi
    return 1
}

deadline=$((SECONDS + work_time))
keys=() names=() waits=() waits_for=() restore=()
for ((item = 0; item < count; item++)); do
    field key; field name; field singleton; field text; field needed; field place
    field priority; fields; printf -v "restore[item]" '%s\n' "$priority" "${list[@]}"
    fields; argv=("${list[@]}"); field folder; field array_place; fields; elements=("${list[@]}"); field form; field body
    keys+=("$key") names+=("$name")
    [ "$singleton" = yes ] || waits[item]=$text waits_for[item]=$needed
    if [ -n "$array_place" ]; then
        left=()
        for one in "${elements[@]}"; do is_settled "${item}_$one" "${key}_$one" || left+=("$one"); done
        [ ${#left[@]} -gt 0 ] || continue
    else
        ! is_settled "$item" "$key" || continue
    fi
    for other in $needed; do [ -n "${known[$other]}" ] || { settle; break; }; done
    if [ "$singleton" = yes ]; then
        learn_names
        ! is_under_way "$name" || settle
        if [ -n "${alike["=$name"]}" ]; then text+=${text:+,}afterany${alike["=$name"]}; fi
    fi
    # The other jobs of a rejected submission are not submitted, but may exist already.
    [[ -z $together || -z $refused ]] || continue
    for other in $needed; do
        [ -z "${known[$other]}" ] || continue
        echo "sbatch: error: ${unknown/"$mark"/"$other"}" >"$files/err.$item"
        refuse "$item" 1 "$files/err.$item"
        continue 2
    done
    if [ -n "$place" ]; then
        waits[item]=$text waits_for[item]=$needed
        resolve "$text" "$needed"
        if [ -n "$resolved" ]; then argv[place]=--dependency=$resolved; else unset "argv[place]"; fi
    fi
    case $form in
        text) printf %s "$body" >"$files/body.$item" ;;
        base64) printf %s "$body" | base64 -d >"$files/body.$item" ;;
    esac || { settle; exit 74; }
    if [ -n "$array_place" ]; then
        submit_elements "${left[@]}"
        continue
    fi
    submit <"$files/body.$item" >"$files/out.$item" 2>"$files/err.$item" &
    under_way+=("$item $key $!")
    [ ${#under_way[@]} -lt 4 ] || settle
done
settle
if [[ -n $together && -n ${submitted[*]} ]]; then
    queue || { cat "$work/err" >&2; exit 69; }
    if is_forgotten; then echo "slurmctld has forgotten jobs that it had accepted" >&2; exit 69; fi
fi

if [[ -n $together && -z $refused ]]; then
    for ((item = 0; item < count; item++)); do
        ! is_withdrawn "${keys[item]}" || { echo "$item withdrawn -"; refused=yes; }
    done
fi
if [[ -n $together && -n $refused ]]; then
    declare -A renamed
    for ((item = 0; item < count; item++)); do
        id=${known[${keys[item]}]}
        [ -z "$id" ] || renamed[$id]=${names[item]}$withdrawn_suffix
    done
    if [ ${#renamed[@]} -gt 0 ]; then
        rename change
        ended=("${!renamed[@]}")
        change scancel "${ended[@]}"
        rm -f -- "${ended[@]/#/$withdrawals/.renamed.}"
    fi
    exit 0
fi

# The file system may not lock across login nodes. If another login node has submitted the same jobs, the lower id
# stays: the other one decides the same.
if [ ${#submitted[@]} -gt 0 ] && { [ -n "$together" ] || queue; }; then learn "$work/queue"; fi
lost=() taken_back=()
for line in "${submitted[@]}"; do
    read -r which key id <<<"$line"
    if [ -z "$together" ] && is_withdrawn "$key"; then
        taken_back+=("$id")
        echo "$which withdrawn -"
    elif [ "${known[$key]}" != "$id" ]; then
        lost+=("$id")
        echo "$which adopted ${known[$key]}"
    else
        echo "$which submitted $id"
    fi
done
[ ${#taken_back[@]} -eq 0 ] || change scancel "${taken_back[@]}"
# Jobs that stay must not wait for cancelled ones; and those that were there, for forgotten ones that are submitted anew.
for ((item = 0; item < count; item++)); do
    id=${known[${keys[item]}]} own=${new[${keys[item]}]}
    for other in ${waits_for[item]}; do
        [[ -n $id && -n ${new[$other]} && ${own:-$id} == "$id" ]] || continue
        [[ -z $own || ${known[$other]} != "${new[$other]}" ]] || continue
        resolve "${waits[item]}" "${waits_for[item]}"
        change scontrol update JobId="$id" Dependency="$resolved"
        break
    done
done
[ ${#lost[@]} -eq 0 ] || change scancel "${lost[@]}"

if [ "$together" = start ]; then
    learn_held
    released=()
    declare -A changes
    for ((item = 0; item < count; item++)); do
        key=${keys[item]} id=${known[$key]}
        [ -n "${held[$key]}" ] || continue
        released+=("$id")
        mapfile -t said <<<"${restore[item]%$'\n'}"
        for ((part = 1; part < ${#said[@]}; part++)); do
            # Each part of a heterogeneous job has a comment of its own.
            [ ${#said[@]} -eq 2 ] || id=${known[$key]}+$((part - 1))
            changes["${said[0]} ${said[part]}"]+=,$id
        done
    done
    if [ ${#released[@]} -gt 0 ]; then
        # Comments come last: while a job has ours, the next try knows that it may have to be released.
        change scontrol release "$(joined "${released[@]}")"
        for said in "${!changes[@]}"; do
            priority=${said%% *} id=${changes[$said]#,}
            # slurmctld sets none while a job is held, and lets operators alone do that; sbatch ignores those of others.
            [ -z "$priority" ] ||
                gone="$gone|access/permission denied|priority are not persistent" \
                    change scontrol update JobId="$id" Priority="$priority"
            change scontrol update JobId="$id" Comment="${said#* }"
        done
    fi
fi

cancel_withdrawn
exit 0
