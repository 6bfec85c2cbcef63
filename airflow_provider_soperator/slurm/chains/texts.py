"""What scripts do with the texts that sbatch prints, whose ids nobody knows yet.

Each job's id is stood in for by one character that no script has. So an id goes through quotes, variables, awk and cut
as the real one would, and is seen wherever it ends up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

_FIRST, _LAST = 0xF0000, 0xFFFFD  # a plane of Unicode that is for private use
_STAND_IN = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")


def stand_in(number: int) -> str:
    """The character for the id of a job, counted from 0."""
    return chr(_FIRST + number)


def is_stand_in(text: str) -> bool:
    return _STAND_IN.fullmatch(text) is not None


def jobs_in(text: str) -> list[int]:
    """The jobs whose ids a text has.

    >>> jobs_in(f"afterok:{stand_in(0)}:{stand_in(3)}:17")
    [0, 3]
    """
    return [ord(found) - _FIRST for found in _STAND_IN.findall(text)]


# Patterns


def _with_ids(pattern: str) -> str:
    """A regular expression in which an id is a digit, as it consists of them."""
    pattern = pattern.replace("[:digit:]", "0-9").replace("[:space:]", r"\s").replace("[:alpha:]", "A-Za-z")
    return pattern.replace(r"\d", "[0-9]").replace("0-9", f"0-9{chr(_FIRST)}-{chr(_LAST)}")


_GLOB = re.compile(
    r"\\(?P<escaped>.)|(?P<many>\*)|(?P<one>\?)|\[(?P<not>[!^]?)(?P<set>\]?[^\]]*)\]|(?P<plain>.)", re.DOTALL
)


def glob(pattern: str) -> re.Pattern[str]:
    """The shell's patterns, `*` and the like, as a regular expression.

    >>> glob("* ").fullmatch("Submitted batch job ") is not None
    True
    """

    def translated(found: re.Match[str]) -> str:
        if found["many"]:
            return ".*"
        if found["one"]:
            return "."
        if found["set"] is not None:
            letters = found["set"].replace("\\", "\\\\")
            return f"[{'^' if found['not'] else ''}{letters}]"
        return re.escape(found["escaped"] or found["plain"])

    return re.compile(_with_ids(_GLOB.sub(translated, pattern.replace("[:digit:]", "0-9"))), re.DOTALL)


def without_beginning(text: str, pattern: re.Pattern[str], longest: bool) -> str:
    """As `${text#pattern}` and `${text##pattern}`."""
    ends = range(len(text), -1, -1) if longest else range(len(text) + 1)
    return next((text[end:] for end in ends if pattern.fullmatch(text[:end])), text)


def without_end(text: str, pattern: re.Pattern[str], longest: bool) -> str:
    """As `${text%pattern}` and `${text%%pattern}`."""
    starts = range(len(text) + 1) if longest else range(len(text), -1, -1)
    return next((text[:start] for start in starts if pattern.fullmatch(text[start:])), text)


def sequence(*numbers: int) -> str:
    """What seq prints for one number to three of them.

    >>> sequence(1, 5, 12)
    '1\\n6\\n11\\n'
    """
    first, *_ = numbers if len(numbers) > 1 else (1,)
    step = numbers[1] if len(numbers) == 3 else 1
    past = numbers[-1] + (1 if step > 0 else -1)
    return _lines([str(number) for number in range(first, past, step)] if step else [])


# Programs: each takes its arguments and its input, and gives its output; None for what is not understood.

Program = Callable[[Sequence[str], str], str | None]

_AWK = re.compile(r"\s*(?:/(?P<having>[\w ]+)/)?\s*\{\s*print\s*\(?\s*\$\s*(?P<field>NF|[1-9]\d*)\s*\)?\s*;?\s*\}\s*")
_CUT = re.compile(r"(?:-d ?(?P<by>.)|--delimiter=(?P<by_long>.)|-f ?(?P<field>\d+)|--fields=(?P<field_long>\d+))")
_SED = re.compile(r"s(?P<mark>[/#|,])(?P<old>.*)(?P=mark)(?P<new>.*)(?P=mark)(?P<flags>[gp]*)")

_SET = re.compile(r"(?P<special>\[:\w+:\]|\w-\w|\\[nt])|.", re.DOTALL)


def _awk(args: Sequence[str], text: str) -> str | None:
    separator = None
    if args and args[0].startswith("-F"):
        separator, args = (args[0][2:], args[1:]) if len(args[0]) > 2 else ("".join(args[1:2]), args[2:])
    program = _AWK.fullmatch(args[0]) if len(args) == 1 else None
    if program is None or (separator is not None and len(separator) != 1):
        return None
    found = []
    for line in text.splitlines():
        if (program["having"] or "") in line:
            fields = line.split(None if separator == " " else separator)
            field = len(fields) if program["field"] == "NF" else int(program["field"])
            found.append(fields[field - 1] if 0 < field <= len(fields) else "")
    return _lines(found)


def _cut(args: Sequence[str], text: str) -> str | None:
    by, field = "\t", 0
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word in ("-d", "-f") and rest:
            word += rest.pop(0)
        option = _CUT.fullmatch(word)
        if option is None:
            return None
        by = option["by"] or option["by_long"] or by
        field = int(option["field"] or option["field_long"] or field)
    if not field:
        return None
    lines = [(line, line.split(by)) for line in text.splitlines()]
    return _lines([line if len(parts) == 1 else "".join(parts[field - 1 : field]) for line, parts in lines])


def _tr(args: Sequence[str], text: str) -> str | None:
    match list(args):
        case ["-d" | "--delete", letters]:
            return re.sub(f"[{_letters(letters)}]", "", text)
        case ["-dc" | "-cd", letters]:
            return re.sub(f"[^{_letters(letters)}]", "", text)
        case [("\\n" | " " | "," | ":") as old, ("\\n" | " " | "," | ":") as new]:
            return text.replace(old.replace("\\n", "\n"), new.replace("\\n", "\n"))
    return None


def _letters(written: str) -> str:
    """What tr is given, as it stands between the brackets of a regular expression."""
    return _with_ids(_SET.sub(lambda one: one[0] if one["special"] else re.escape(one[0]), written))


def _sed(args: Sequence[str], text: str) -> str | None:
    *flags, script = args or [""]
    extended = any(flag in ("-E", "-r", "-nE", "-En", "-nr", "-rn") for flag in flags)
    only_printed = any("n" in flag for flag in flags)
    found = _SED.fullmatch(script)
    known = {"-E", "-r", "-n", "-e", "-nE", "-En", "-nr", "-rn"}
    if found is None or not known.issuperset(flags) or only_printed != ("p" in found["flags"]):
        return None
    old = found["old"]
    if not extended:  # \( groups, and ( is itself
        old = re.sub(r"\\?[(){}+?|]", lambda one: one[0][1:] if len(one[0]) > 1 else f"\\{one[0]}", old)
    new = found["new"].replace("&", r"\g<0>")
    count = 0 if "g" in found["flags"] else 1
    changed = [re.subn(_with_ids(old), new, line, count=count) for line in text.splitlines()]
    return _lines([line for line, times in changed if times or not only_printed])


def _grep(args: Sequence[str], text: str) -> str | None:
    *flags, pattern = args or [""]
    letters = "".join(flag.lstrip("-") for flag in flags)
    if "o" not in letters or not set(letters) <= set("oEPe") or not all(flag.startswith("-") for flag in flags):
        return None
    return _lines([one[0] for line in text.splitlines() for one in re.finditer(_with_ids(pattern), line) if one[0]])


def _head(args: Sequence[str], text: str) -> str | None:
    return _lines(text.splitlines()[:1]) if list(args) in (["-1"], ["-n1"], ["-n", "1"]) else None


def _tail(args: Sequence[str], text: str) -> str | None:
    return _lines(text.splitlines()[-1:]) if list(args) in (["-1"], ["-n1"], ["-n", "1"]) else None


def _same(args: Sequence[str], text: str) -> str | None:
    return text


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


_FILTERS: Mapping[str, Program] = {
    **{"awk": _awk, "gawk": _awk, "cut": _cut, "tr": _tr, "sed": _sed, "grep": _grep, "egrep": _grep},
    **{"head": _head, "tail": _tail, "tee": _same},
}
FILTERS = frozenset(_FILTERS)


def filtered(program: str, args: Sequence[str], text: str) -> str | None:
    """What a filter makes of a text; None if this use of it is not understood.

    >>> filtered("awk", ["{print $4}"], "Submitted batch job 12\\n")
    '12\\n'
    """
    try:
        return _FILTERS[program](args, text)
    except (re.error, IndexError):
        return None
