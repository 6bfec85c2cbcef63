"""Runs the text filters of a script of chained sbatch calls, the only commands of it that are run.

bash has no program within reach, so that nothing in a script gets round what is checked here. A filter gets text alone:
no file, no variable, and nothing to do that is not to print.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory, TemporaryFile

NAMES = (
    *("awk", "basename", "cat", "cut", "dirname", "egrep", "expr", "fgrep", "gawk", "grep", "head", "mawk", "paste"),
    *("rev", "sed", "seq", "sort", "tac", "tail", "tr", "uniq", "wc"),
)
#: Seconds that a filter may take, and bytes that it may print.
SECONDS, _MOST_PRINTED = 20.0, 10_000_000

#: Options that write a file, run a program, or read commands from a file. Others in one word take the rest of it.
_ACTING = {"sed": re.compile(r"-[^-el]*[fi]|--(?:i|fi)"), "sort": re.compile(r"-[^-kStT]*o|--(?:o|co)")}
_TEXT = r'"(?:\\.|[^"\\])*"'
#: awk acts, or reads more than its text, by these alone, and by `>` and `|` in the statement of a print. That has ended
#: where `;` or `}` comes before anything that a pattern or a comment could begin with.
_AWK = re.compile(
    rf"system|getline|@|ARGV|ENVIRON|print(?!(?:{_TEXT}|[^\"/#\\>|;}}])*[;}}]).*[>|]",
    re.DOTALL,
)


class MayActError(Exception):
    """The filter might write a file or run a command, or is not there."""


class EndlessError(Exception):
    """The filter does not come to an end."""


def takes_text(name: str, words: Sequence[str]) -> bool:
    """True if the filter reads what comes to it, as it would a letter."""
    given, giving = os.pipe()
    try:
        os.write(giving, b"x")
        os.close(giving)
        _run(name, words, given)
        return not os.read(given, 1)
    finally:
        os.close(given)


def filtered(name: str, words: Sequence[str], text: str) -> tuple[int, str] | None:
    """The status of a filter and what it makes of a text; None if it would read what only the cluster has."""
    with TemporaryFile() as given:
        given.write(text.encode())
        given.seek(0)
        done = _run(name, words, given.fileno())
    fails = done is None or (done[0] != 0 and not (done[0] == 1 and name.endswith(("expr", "grep"))))
    return None if fails else done


def _run(name: str, words: Sequence[str], given: int) -> tuple[int, str] | None:
    program = shutil.which(name)
    if program is None or _may_act(name, words):
        raise MayActError
    sandbox = ["--sandbox"] if name == "sed" or os.path.basename(os.path.realpath(program)) == "gawk" else []
    with TemporaryDirectory(prefix="soperator-chain-") as here:
        if any(_is_here(word, here) for word in words):
            return None
        process = subprocess.Popen(
            [program, *sandbox, *words],
            cwd=here,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with process:
            try:
                status, printed = _ended(process)
            finally:
                process.kill()
    if name == "sed" and status == 1:
        # It knows its commands itself: those that act are a mistake in a sandbox.
        raise MayActError
    return status, printed.decode(errors="replace")


def _ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    deadline, printed = time.monotonic() + SECONDS, b""
    assert process.stdout is not None
    while len(printed) < _MOST_PRINTED and (left := deadline - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], left)[0]:
            some = os.read(process.stdout.fileno(), 65536)
            if not some:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(left), printed
                break
            printed += some
    raise EndlessError


def _may_act(name: str, words: Sequence[str]) -> bool:
    if name in _ACTING:
        return any(map(_ACTING[name].match, words))
    if name == "uniq":
        # It writes its second file.
        return "--" in words or sum(not re.fullmatch(r"-.+|\d+", word) for word in words) > 1
    return name.endswith("awk") and _awk_may_act(list(words))


def _awk_may_act(words: list[str]) -> bool:
    while words and words[0].startswith(("-F", "-v")):
        del words[: 2 if words[0] in ("-F", "-v") else 1]
    if words[:1] == ["--"]:
        del words[0]
    if not words or any(re.match("-.", word) for word in words):
        return True
    # Without patterns and comments, a quote is that of a text.
    code = words[0] if re.search("[/#]", words[0]) else re.sub(f"(?s){_TEXT}", "", words[0])
    return _AWK.search(code) is not None


def _is_here(word: str, here: str) -> bool:
    """True if a word is a file of this machine, or an option has one."""
    if word.startswith("-") and "/" in word:
        file = word[word.index("/") :]
        return os.path.exists(file) and not os.path.isdir(file)
    return bool(word) and os.path.exists(os.path.join(here, word))
