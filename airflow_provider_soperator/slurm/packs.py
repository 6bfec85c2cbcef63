"""Equal jobs of mapped tasks as one array, for one call of sbatch.

They have all options in common; body, arguments and variables may differ, and their names and files by the number of
the element. The script of the array has what is common once, and runs as the interpreter that the jobs name.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.slurm import directives, sbatch_arguments
from airflow_provider_soperator.slurm.job import BatchJob, fields_of
from airflow_provider_soperator.slurm.job_records import OF_EACH_ELEMENT, letters_of
from airflow_provider_soperator.slurm.submission_keys import ELEMENTS, SubmissionKey, key_of, strip_key

#: Bytes of the script of an array: each of its elements gets all of it.
MOST_BYTES = 256 << 10


@dataclass(frozen=True)
class Pack:
    """What goes in one call of sbatch: jobs as one array, whose name ends in the key that they share, or a single job.

    ``places`` has their places among all jobs by their elements; that of a single job is None.
    """

    job: BatchJob
    key: SubmissionKey
    places: Mapping[int | None, int]


@dataclass(frozen=True)
class Packable:
    """One of the jobs that may go as an array: what it has in common with the others, and what it has not."""

    job: BatchJob
    #: What is another in the array, but for its name.
    changes: Mapping[str, Any]
    #: That of an array of jobs with this name, and of one whose names differ by the number of the element.
    names: tuple[str, str]
    element: int
    body: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    #: Equal for all that may go together.
    kind: str


def packs(packables: Iterable[Packable | None]) -> list[Pack]:
    """The arrays that can be made of some jobs; those that go on their own are in none."""
    there = [(place, packable) for place, packable in enumerate(packables) if packable]
    named = Counter((packable.kind, packable.names[0]) for _, packable in there)
    groups: dict[tuple[str, str], list[tuple[int, Packable]]] = {}
    for place, packable in there:
        own, shared = packable.names
        name = own if named[packable.kind, own] > 1 else shared
        groups.setdefault((packable.kind, name), []).append((place, packable))
    return [
        pack
        for (_, name), group in groups.items()
        for pack in _packs(name, sorted(group, key=lambda one: one[1].element))
    ]


def _packs(name: str, group: Sequence[tuple[int, Packable]]) -> list[Pack]:
    if len(group) == 1:
        return []
    packables = [packable for _, packable in group]
    job = _array(packables).replace(name=name)
    if len(job.script or "") > MOST_BYTES:
        half = len(group) // 2
        return _packs(name, group[:half]) + _packs(name, group[half:])
    key = key_of(name)
    assert key is not None
    return [Pack(job, key, {packable.element: place for place, packable in group})]


def packable_of(job: BatchJob) -> Packable | None:
    """What a job has in common with others; None if it must go on its own."""
    key, text = key_of(job.name or ""), sbatch_arguments.body(job)
    if key is None or key.element is None or key.element >= ELEMENTS or job.het:
        return None
    if not text or not text.startswith("#!") or "\0" in text or _ACTS_ON_JOBS.search(text):
        return None
    parts = directives.read(text)
    if len(parts) > 1:
        return None
    full = sbatch_arguments.with_lines(job, parts[0])
    if full.problems():
        # Slurm is to say what it makes of such lines, to the task alone.
        return None
    # Elements are numbered already; mail is sent of an array as a whole; and a singleton goes by its name.
    if full.array is not None or full.mail_type is not None or sbatch_arguments.is_singleton(full):
        return None
    files = {"output": _pattern(full.output, key.element), "error": _pattern(full.error, key.element)}
    # Jobs on their own differ by %x and %A, which are those of the array for all of its elements.
    used = [letters_of(path or "") for path in files.values()]
    if any(letters & {"A", "x"} and letters.isdisjoint(OF_EACH_ELEMENT) for letters in used):
        return None
    fixed = {name: value for name, value in full.env.items() if full.export is not None or _OF_SUBMISSION.match(name)}
    changes = {**dict.fromkeys(_BODIES), "args": (), "env": fixed, "name": None, **files}
    env = {name: value for name, value in full.env.items() if name not in fixed}
    interpreter, _, _ = text.partition("\n")
    kind = json.dumps([interpreter, fields_of(full) | changes], sort_keys=True)
    names = _array_names(job.name or "", key)
    return Packable(full, changes, names, key.element, text, tuple(map(str, job.args)), env, kind)


_BODIES = ("script", "command")
#: To what changes jobs the $SLURM_JOB_ID of one element is the whole array: all would be requeued or cancelled.
_ACTS_ON_JOBS = re.compile(r"\bscancel\b|\bscontrol\b(?!(\s+-\S+)*\s+show\b)")
#: Variables that matter before the script begins, or that a shell does not let be set.
_OF_SUBMISSION = re.compile(r"(?![A-Za-z_]\w*$)|(SLURM|SBATCH|SPANK|PYXIS|ENROOT|LD|BASH)|(IFS|E?UID|PPID|SHELLOPTS)$")


def names_in_queue(names: Iterable[str]) -> dict[str, None]:
    """The names under which jobs may have been submitted: their own, and those of the arrays that they may be in."""
    found: dict[str, None] = {}
    for name in names:
        key = key_of(name)
        found |= dict.fromkeys((name, *(_array_names(name, key) if key and key.element is not None else ())))
    return found


def _array_names(name: str, key: SubmissionKey) -> tuple[str, str]:
    """The name of an array of jobs with this name, and of one whose names differ by the numbers of their tasks."""
    assert key.element is not None, "the key is that of an element"
    own = strip_key(name)
    rest, is_default = _without_number(own, key.element)
    return key.shared.name(rest if is_default else own), key.shared.name(rest)


def _without_number(name: str, element: int) -> tuple[str, bool]:
    """A name without the number of the job's task, and if that stands where names have it by default.

    >>> _without_number("fit.1017.train.manual", 17), _without_number("v17-dock", 17)
    (('fit.train.manual', True), ('v-dock', False))
    """
    numbers = [found for found in re.finditer(rf"[._-]?{_NUMBER.pattern}", name) if _is_of(found[1], element)]
    if not numbers:
        return name, False
    # It is a part of the name, before a run that may end in any number.
    default = next((one for one in numbers if f"{name}.".startswith(f".{one[1]}.", one.start())), None)
    found = default or numbers[-1]
    return name[: found.start()] + name[found.end() :] or name, default is not None


def _pattern(path: str | None, element: int) -> str | None:
    """The pattern of the files of an array's elements: the number of a task as what Slurm makes of the element.

    >>> _pattern("airflow/train/fit.17-%j.out", 17), _pattern("airflow/train/fit.2003-%j.out", 3)
    ('airflow/train/fit.%a-%j.out', 'airflow/train/fit.2%3a-%j.out')
    """
    if path is None or "\\" in path:
        return path
    start = path.rfind("/") + 1
    numbers = [found for found in _NUMBER.finditer(path, start) if _is_of(found[0], element)]
    if not numbers:
        return path
    found = numbers[-1]
    before = int(found[0]) // ELEMENTS
    return path[: found.start()] + (f"{before}%{_WIDTH}a" if before else "%a") + path[found.end() :]


#: A number that is not the width of a pattern.
_NUMBER = re.compile(r"(?<![%0-9])(0|[1-9][0-9]*)(?![0-9])")
_WIDTH = len(str(ELEMENTS - 1))


def _is_of(number: str, element: int) -> bool:
    return int(number) % ELEMENTS == element


def _array(packables: Sequence[Packable]) -> BatchJob:
    """The array of these jobs, without the numbers of its elements."""
    first = packables[0]
    array = first.job.replace(**first.changes)
    bodies = [packable.body for packable in packables]
    differences: list[list[str]] = []
    head = _common_start(bodies)
    tail = _common_start([body[len(head) :][::-1] for body in bodies])[::-1]
    if any(body != first.body for body in bodies):
        differences.append([f"{_PIECE}={shlex.quote(body[len(head) : len(body) - len(tail)])}" for body in bodies])
    if all(packable.args == first.args for packable in packables):
        array = array.replace(args=first.args)
    else:
        differences.append([f"set -- {shlex.join(packable.args)}" for packable in packables])
    if all(packable.env == first.env for packable in packables):
        array = array.replace(env={**array.env, **first.env})
    else:
        differences.append([_exports(packable.env) for packable in packables])
    if not differences:
        return array.replace(script=first.body)
    cases: dict[str, list[int]] = {}
    for packable, *own in zip(packables, *differences, strict=True):
        cases.setdefault("; ".join(filter(None, own)), []).append(packable.element)
    choices = "".join(f"{'|'.join(map(str, elements))}) {own} ;;\n" for own, elements in cases.items())
    found = _INTERPRETER.match(first.body)
    assert found is not None, "what is no script is refused before"
    interpreter = shlex.join(filter(None, found.groups()))
    body = f"{_escaped(head)}${{{_PIECE}}}{_escaped(tail)}".removesuffix("\n")
    end = "_soperator_end"
    while end in body:
        end += "_"
    return array.replace(script=_SCRIPT.format(choices=choices, interpreter=interpreter, body=body, end=end))


#: The shell variable for what differs in the bodies.
_PIECE = "_soperator_piece"
#: The kernel gives the interpreter all that follows as one argument.
_INTERPRETER = re.compile(r"#!\s*(\S+)[ \t]*(.*\S)?")
_SCRIPT = """\
#!/bin/sh
# The jobs of mapped tasks as an array: what differs, and then what is common.
case $SLURM_ARRAY_TASK_ID in
{choices}esac
exec {interpreter} /dev/fd/9 "$@" 9<<{end}
{body}
{end}
"""


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    length = next((place for place, letter in enumerate(first) if letter != last[place]), len(first))
    return first[:length]


def _exports(env: Mapping[str, str]) -> str:
    return " ".join(["export", *(f"{name}={shlex.quote(value)}" for name, value in env.items())]) if env else ""


def _escaped(text: str) -> str:
    """Text of a here-document in which the shell replaces variables."""
    return re.sub(r"[\\$`]", r"\\\g<0>", text)
