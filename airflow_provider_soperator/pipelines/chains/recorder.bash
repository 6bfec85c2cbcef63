# shellcheck shell=bash
# What bash reads before a script of chained sbatch calls, so that it records the calls and does nothing else.
#
# It is read by `bash --restricted` with an empty PATH, in an empty folder. Restricted bash writes no file and runs no
# program by its path; all that is left comes by here. What it cannot know is asked of the process that has started it,
# which opens the descriptors and looks for errors and opened files at each question (recording.py), and then answers,
# or refuses the script (`_answered` in reading.py):
#
#   198  a question: the number of its words, the process, the line, the command, the words
#   199  the answer: a status and a text, which are 0 and empty if nothing else is said below
#   197  a letter, which the command that asks takes until it is answered: those of a pipe run side by side
#   196  where it gives the letter back   195  /dev/null   200 and up  where the script writes to /dev/null and the like
#
#   sbatch FOLDER COUNT VARIABLES WORDS   what sbatch prints; `stdin` if it waits for a script
#   stdin SCRIPT                          what sbatch prints
#   takes '' FILTER                       1 if the filter reads no text
#   filter TEXT FILTER                    how it ends, and what it prints
#   told COMMAND                          a mark, for what only the cluster can print
#   decide COMMAND                        the same, with 0 or 1: the script is followed both ways
#   unknown COMMAND                       a mark if it is ignored, else refused
#   given NAME                            the value that the caller has given; 1 without one
#   named NAME VALUE                      a variable has the id of a job
#   exit STATUS, over LINE, end           the script ends: itself; after a command of this line; as a whole
#   input                                 nothing: it is asked for the look at opened files
#   lost VALUE NAME, read VALUE, words VALUE HEAD     refused, if it hangs on a value that is not known
#   pattern NAME VALUE, loop                          refused, if it has patterns for files
#   missing FILE, typed, and the words of `_REFUSED`  refused, if it is so
#
# A value that only the cluster knows is stood in for by control characters (a mark), which no script has. Whatever
# would lose them on the way (tests, filters, lossy expansions) is stopped.

_soperator_marks=$'\x02\x03\x04\x05'
_soperator_now=''
_soperator_place=0
_soperator_last=0
_soperator_folder=''
_soperator_own=()
# Within commands of a deeper shell than this, what only the cluster knows would be weighed by [[ ]], (( )) or case.
_soperator_weighs=99
# Set by who has begun this.
_soperator_ids=${_soperator_ids-}
_soperator_ignored=("${_soperator_ignored[@]}")

# Asks about a command, and leaves the answer in _soperator_said; its status is the one that the command ends with.
_soperator_ask() {
  local _soperator_frame=0 _soperator_line=$_soperator_place _soperator_status=0
  while ((++_soperator_frame < ${#BASH_SOURCE[@]})); do
    if [[ ${BASH_SOURCE[_soperator_frame]} == "$0" ]]; then
      _soperator_line=${BASH_LINENO[_soperator_frame - 1]}
      break
    fi
  done
  builtin read -r -N 1 -u 197 _soperator_said || builtin exit 1
  printf '%s\0' "$#" "$BASHPID" "$_soperator_line" "$_soperator_now" "$@" >&198
  IFS= builtin read -r -d '' -u 199 _soperator_status || builtin exit 1
  IFS= builtin read -r -d '' -u 199 _soperator_said || builtin exit 1
  printf . >&196
  return "$_soperator_status"
}

# Prints what is asked for.
_soperator_tell() {
  local _soperator_said='' _soperator_status=0
  _soperator_ask "$@" || _soperator_status=$?
  [[ $BASH_SUBSHELL -le $_soperator_weighs || $_soperator_said != *[$_soperator_marks]* ]] ||
    _soperator_ask read "$_soperator_said"
  printf %s "$_soperator_said"
  return "$_soperator_status"
}

command_not_found_handle() { _soperator_tell unknown "$@"; }

_soperator_sbatch() {
  local _soperator_name _soperator_said='' _soperator_text='' _soperator_exported=() IFS=$'\n'
  [[ -z $(declare -Fx) ]] || _soperator_ask function
  for _soperator_name in $(compgen -e); do
    _soperator_exported+=("$_soperator_name=${!_soperator_name-}")
  done
  _soperator_exported+=("${_soperator_own[@]}")
  _soperator_ask sbatch "$_soperator_folder" "${#_soperator_exported[@]}" "${_soperator_exported[@]}" "$@" || return
  if [[ $_soperator_said == stdin ]]; then
    IFS= builtin read -r -d '' _soperator_text || :
    _soperator_ask stdin "$_soperator_text" || return
  fi
  printf %s "$_soperator_said"
}

sbatch() { _soperator_sbatch "$@"; }

env() {
  local _soperator_own=("${_soperator_own[@]}")
  while [[ ${1-} == [A-Za-z_]*=* ]]; do
    _soperator_own+=("$1")
    shift
  done
  if [[ ${1-} == -* || $# -eq 0 ]]; then
    _soperator_tell unknown env "$@"
  else
    "$@"
  fi
}

command() {
  case ${1-} in
    -[vV]) _soperator_look_up command "$@" ;;
    -*) _soperator_tell unknown command "$@" ;;
    sbatch) _soperator_sbatch "${@:2}" ;;
    *) "$@" ;;
  esac
}

which() { printf '%s\n' "$@"; }

type() {
  if [[ ${1-} == -[pP] ]]; then
    printf '%s\n' "${@:2}"
  else
    _soperator_look_up type "$@"
  fi
}

hash() { _soperator_look_up hash "$@"; }

# Only of what is recorded is it known here that it is there.
_soperator_look_up() { builtin "$@" 2>&195 || _soperator_tell decide "$@"; }

cd() {
  [[ ${1-} != -- ]] || shift
  if [[ $# -ne 1 || -z $1 || $1 == - ]] || [[ $1 == *[$_soperator_marks]* && $BASH_SUBSHELL -eq 0 ]]; then
    _soperator_tell unknown cd "$@"
  elif [[ $1 == /* || $1 == *[$_soperator_marks]* ]]; then
    _soperator_folder=$1
  else
    _soperator_folder+=${_soperator_folder:+/}$1
  fi
}

exit() {
  set -- "${1-$?}"
  ((BASH_SUBSHELL)) || _soperator_ask exit "$1" || :
  builtin exit "$@"
}

# Of what it would write only logs and lists of ids do not matter: a script or data would be missing on the cluster.
tee() {
  local _soperator_word _soperator_said='' _soperator_text=''
  IFS= builtin read -r -d '' _soperator_text || :
  for _soperator_word; do
    [[ $_soperator_word != @(-*|/dev/*) ]] || continue
    [[ $_soperator_text != '#!'* && ($_soperator_text == *$_soperator_ids* ||
      ${_soperator_word,,} == @(?(*[!a-z])log?(s|file)?([!a-z]*)|*.out)) ]] ||
      _soperator_ask missing "$_soperator_word"
  done
  printf %s "$_soperator_text"
}

read() {
  local _soperator_name _soperator_status=0
  for _soperator_name; do
    [[ $_soperator_name != -p ]] || _soperator_ask typed
  done
  _soperator_ask input
  # shellcheck disable=SC2162 # the script says itself whether it is -r
  builtin read "$@" || _soperator_status=$?
  for _soperator_name in "$@" REPLY; do
    if [[ $_soperator_name == [A-Za-z_]* && ${!_soperator_name-} == *[$_soperator_marks]* ]]; then
      _soperator_ask read "${!_soperator_name}"
    fi
  done
  return "$_soperator_status"
}

_soperator_input() {
  local _soperator_said=''
  _soperator_ask input
  builtin "$@"
}

_soperator_test() {
  local _soperator_word _soperator_before='!' _soperator_said=''
  for _soperator_word in "${@:2}"; do
    if [[ $_soperator_word == @(*[$_soperator_marks]*|-nt|-ot|-ef) ||
      $_soperator_before == @(!|\(|-a|-o) && $_soperator_word == -[bcdefghkLprsStuwxGNO] ]]; then
      _soperator_ask decide "${@:2}"
      return
    fi
    _soperator_before=$_soperator_word
  done
  builtin "$@"
}

# A program that makes texts of texts. Of a loop's input only what reads it takes anything.
_soperator_filter() {
  local _soperator_said='' _soperator_text=''
  if _soperator_ask takes '' "$@"; then
    IFS= builtin read -r -d '' _soperator_text || :
  fi
  _soperator_tell filter "$_soperator_text" "$@"
}

# Before each command. Where it succeeds the command is left out, and counts as one that has succeeded.
# There is no =~ here, which would take what one in the script has found.
_soperator_look() {
  local _soperator_name _soperator_said='' _soperator_before=$_soperator_now
  [[ ${BASH_SOURCE[1]} == "$0" ]] || return
  shopt -s extdebug
  _soperator_last=$_soperator_place
  _soperator_place=$1
  shift
  _soperator_now=$BASH_COMMAND
  # The background process of a command that ends with &.
  [[ -z ${!:-} ]] || _soperator_ask beside
  _soperator_look_at_assignment "$_soperator_before"
  _soperator_look_at_expansions "$@"
  [[ $_soperator_now != *'$$'* && $_soperator_now != *UID* && $_soperator_now != *PID* ]] || _soperator_ask process
  [[ $_soperator_now != *\$?(\{)_?([!A-Za-z0-9_]*) ]] || _soperator_ask before
  [[ $_soperator_now != printf\ *%\(*\)T* ]] || _soperator_ask clock
  [[ $_soperator_now != select\ * ]] || _soperator_ask typed
  [[ $_soperator_now != trap\ *DEBUG* ]] || _soperator_ask trap
  # The words of a loop have been looked at by now.
  [[ $_soperator_now != for\ *[*?[]* ]] || _soperator_ask loop
  # Where a word is not known, nor is the number of words.
  if [[ $_soperator_before == for\ * ]]; then
    _soperator_name=${_soperator_before#for }
    _soperator_name=${_soperator_name%% *}
    [[ ${!_soperator_name-} != *[$_soperator_marks]* ]] ||
      _soperator_ask words "${!_soperator_name}" "$_soperator_before"
  fi
  shopt -s failglob
  # Options such as --nodelist=worker-[0-3] are no patterns, unless they would be dropped, nor is a multiplication.
  [[ $_soperator_now != @(*sbatch*|let\ *) ]] || shopt -q nullglob || shopt -u failglob
  # Nor do they matter of a command that is passed over. A file that it writes is passed over with it.
  for _soperator_name in "${_soperator_ignored[@]}"; do
    [[ $_soperator_now == "$_soperator_name "* ]] || continue
    [[ $(declare -f "$_soperator_name") != *_soperator_tell\ unknown* ]] || shopt -u failglob
    [[ $_soperator_now == *\>* ]] || continue
    [[ $_soperator_now != *sbatch* ]] || _soperator_ask written
    return 0
  done
  if [[ $_soperator_now == "[[ "@(?(*@(!|\(|&&|\|\|)\ )-[bcdefghkLprsStuwxGNO]|*\ -[neo][tf])\ * ]]; then
    if _soperator_ask decide "$_soperator_now"; then return 0; fi
  fi
  return 1
}

# What the command before has set, if it is the id of a job, or a value that is not known here and has been given.
_soperator_look_at_assignment() {
  local _soperator_name=$1
  while [[ $_soperator_name == @(declare|export|local|readonly|typeset|-*)\ * ]]; do
    _soperator_name=${_soperator_name#* }
  done
  [[ $_soperator_name == [A-Za-z_]*=* && ${_soperator_name#*=} != \(* ]] || return 0
  _soperator_name=${_soperator_name%%=*}
  [[ $_soperator_name != *[!A-Za-z0-9_]* ]] || return 0
  if [[ ${!_soperator_name-} == *"$_soperator_ids"* ]]; then
    _soperator_ask named "$_soperator_name" "${!_soperator_name}"
  elif [[ ${!_soperator_name-} == *[$_soperator_marks]* ]] && _soperator_ask given "$_soperator_name"; then
    printf -v "$_soperator_name" %s "$_soperator_said"
  fi
}

# A way to go that hangs on what is not known, or an expansion that would lose its mark.
_soperator_look_at_expansions() {
  local _soperator_name _soperator_all _soperator_rest=$_soperator_now _soperator_loses=''
  ((BASH_SUBSHELL > _soperator_weighs)) || _soperator_weighs=99
  case $_soperator_now in case\ * | \[\[\ * | \(\(*)
    _soperator_loses=always
    _soperator_weighs=$BASH_SUBSHELL
    [[ $* != *[$_soperator_marks]* ]] || _soperator_ask lost "$*" '[0-9@*]'
    ;;
  esac
  [[ $_soperator_now != *'$#'* || $* != *[$_soperator_marks]* ]] || _soperator_ask lost "$*" '(?<=\$)#'
  while [[ $_soperator_rest == *\$* ]]; do
    _soperator_rest=${_soperator_rest#*\$}
    _soperator_name=${_soperator_rest#\{}
    _soperator_name=${_soperator_name#[\#!]}
    _soperator_name=${_soperator_name%%[!A-Za-z0-9_]*}
    [[ $_soperator_name == [A-Za-z_]* && $_soperator_name != BASH_* ]] || continue
    _soperator_all="${_soperator_name}[*]"
    if [[ ${!_soperator_all-} == *[$_soperator_marks]* ]]; then
      case ${_soperator_loses:-$_soperator_rest} in
        always | \{[\#!]* | \{"$_soperator_name"/* | \{"$_soperator_name":[!-=?]*)
          _soperator_ask lost "${!_soperator_all}" "$_soperator_name"
          ;;
      esac
    elif [[ $_soperator_now == @(*sbatch|for\ )* && $- != *f* && ${!_soperator_all-} == *[*?[]* ]]; then
      _soperator_ask pattern "$_soperator_name" "${!_soperator_all}"
    fi
  done
}

# To be called when all else has been defined.
_soperator_begin() {
  # Restricted bash does not enable them again. These have effects on other processes or files, or on what jobs inherit.
  enable -n bind enable fc history kill popd pushd suspend ulimit umask
  # No pattern is replaced by names of files: those that the script means are on the cluster.
  readonly GLOBIGNORE='*:/*:/*/*:/*/*/*:/*/*/*/*:/*/*/*/*/*:/*/*/*/*/*/*'
  shopt -s failglob
  set -T
  # With the `!` a script with `set -e` goes on where a command is left out.
  trap '! _soperator_look "$LINENO" "$@"' DEBUG
  # So that the line is known where a command that fails ends the script.
  trap '_soperator_ask over "$_soperator_last" || :' EXIT
}

# Comes behind the last line of the script.
_soperator_end() { _soperator_ask end || :; }
