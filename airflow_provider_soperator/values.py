"""Parameters of DAG files and their rendered templates, such as dates and times; and values that travel as JSON."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_soperator.errors import AirflowAway, name_remedy

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

#: Default namespace of a cluster in Soperator's Helm charts.
NAMESPACE = "soperator"
#: A file whose text is a template; it lies beside the DAG.
SCRIPTS = (".sh", ".sbatch")
#: Of Jinja's; a text that ends with it names no such file.
COMMENT = "{# #}"
#: Parameters by names that they have elsewhere, none of which is like them.
_ELSEWHERE = {
    **dict.fromkeys(("conn_id", "ssh_conn_id"), "slurm_conn_id"),
    **dict.fromkeys(("walltime", "max_time"), "time_limit"),
    "environment": "env",
}
#: Texts that mean no.
_NO = frozenset({"", "0", "false", "no", "none", "off"})
#: What the triggerer has for templates: the run of the DAG and its parameters, variables and connections. Asked for
#: anything else, as for an XCom, it does not answer, and the caller waits forever.
_VALUES = frozenset(
    {
        "conn", "dag_run", "data_interval_end", "data_interval_start", "ds", "ds_nodash", "logical_date", "macros",
        "params", "run_id", "task_instance_key_str", "ts", "ts_nodash", "ts_nodash_with_tz", "var",
    }
)  # fmt: skip
_TASK_INSTANCE = frozenset({"ti", "task_instance"})
#: What a task instance has at hand.
_ATTRIBUTES = frozenset({"dag_id", "map_index", "run_id", "task_id", "try_number"})
#: What writes and reads plain values, by their class.
_ADAPTERS: dict[type, Any] = {}
#: NUL, which PostgreSQL's JSON cannot hold, and halves of characters, which UTF-8 cannot either.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_HOME_OR_VARIABLE = re.compile(r"^~|\$[A-Za-z_{]")


class Plain:
    """A dataclass that is written as plain JSON, and read from it."""

    def write(self) -> dict[str, Any]:
        said: dict[str, Any] = _adapter(type(self)).dump_python(self, mode="json")
        return said

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Self:
        found: Self = _adapter(cls).validate_python(said)
        return found


def storable(value: Any) -> Any:
    """A JSON value as Airflow can pass it on and store it. An event with anything else in it ends the triggerer.

    Texts are as in ``_NO_TEXT``; Airflow's processes pass on integers of 64 bits, and PostgreSQL has no infinity.

    >>> storable({"loss": [0.5, float("inf")], "hash": 2**64, "line": chr(0) + "done"}) == {
    ...     "loss": [0.5, None], "hash": None, "line": chr(0xFFFD) + "done"
    ... }
    True
    """
    if isinstance(value, str):
        return _NO_TEXT.sub("\ufffd", value)
    if isinstance(value, dict):
        return {storable(name): storable(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(storable, value))
    is_beyond = isinstance(value, int) and not -(1 << 63) <= value < 1 << 64
    return None if is_beyond or (isinstance(value, float) and not math.isfinite(value)) else value


def _adapter(kind: type) -> Any:
    # To make one takes as long as to read some hundred values, and event loops read orders each minute.
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def asked_again(question: Any) -> Any:
    """What Airflow's API says where one has read that there is no such connection or Variable; None if there is none.

    Who reads one is told so also while the API is away: then this raises ``AirflowAway``. It takes the task SDK's
    ``GetConnection`` or ``GetVariable``, and blocks.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time import task_runner

    # The API server and commands have none, and read the database themselves.
    supervisor = getattr(task_runner, "SUPERVISOR_COMMS", None)
    if supervisor is None:
        return None
    try:
        answer = supervisor.send(question)
    except AirflowRuntimeError as failure:
        answer = failure.error
    kind = getattr(answer, "error", None)
    if kind in (ErrorType.CONNECTION_NOT_FOUND, ErrorType.VARIABLE_NOT_FOUND):
        return None
    if kind:
        raise AirflowAway(f"Airflow's API does not answer ({kind.value})")
    return answer


def variable(key: str) -> str | None:
    """The text of an Airflow Variable; None if there is none. Raises ``AirflowAway`` while that is not known."""
    from airflow.sdk import Variable
    from airflow.sdk.execution_time.comms import GetVariable

    found: str | None = Variable.get(key, default=None)
    if found is None:
        try:
            found = getattr(asked_again(GetVariable(key=key)), "value", None)
        except AirflowAway as away:
            raise AirflowAway(f"it is not known what the Airflow Variable {key} keeps: {away}") from None
    return found


def kept(key: str, otherwise: T) -> T:
    """What an Airflow Variable keeps, as JSON; see ``variable``."""
    said = variable(key)
    found: T = json.loads(said) if said else otherwise
    return found


def keep(key: str, value: object) -> None:
    """Keep a value in an Airflow Variable."""
    from airflow.sdk import Variable

    Variable.set(key, json.dumps(value))


def without_airflow(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for others, without Airflow's variables: keys, connections, and the password of its database.

    >>> without_airflow({"HOME": "/root", "AIRFLOW_CONN_A": "ssh://", "__AIRFLOW_B": "1"})
    {'HOME': '/root'}
    """
    return {name: value for name, value in environ.items() if not name.lstrip("_").startswith("AIRFLOW_")}


def is_template(said: object) -> bool:
    """True for a value that is known only when the task runs: a template, or the result of another task.

    >>> is_template("{{ params.count }}"), is_template(4)
    (True, False)
    """
    # An XComArg, without an import of Airflow.
    return hasattr(said, "iter_references") or (isinstance(said, str) and ("{{" in said or "{%" in said))


def listed(said: Iterable[str]) -> list[str]:
    """A list; one text is one item of it.

    >>> listed("RUNNING"), listed(("RUNNING", "COMPLETED"))
    (['RUNNING'], ['RUNNING', 'COMPLETED'])
    """
    return [said] if isinstance(said, str) else list(said)


def comma_separated(said: Any) -> list[Any]:
    """The items of a list, or of a text with commas; a template stays whole until it is rendered.

    >>> comma_separated("root, ana"), comma_separated(["root", "{{ params.users }}"])
    (['root', 'ana'], ['root', '{{ params.users }}'])
    """
    if is_template(said):
        return [said]
    if isinstance(said, str):
        return [one for one in map(str.strip, said.split(",")) if one]
    return [one for each in said or () for one in comma_separated(each)]


def check_interval(name: str, said: object) -> None:
    """Refuse, when the DAG is parsed, what a poll would fail on after its job has been submitted."""
    if isinstance(said, bool) or not isinstance(said, (int, float)) or said <= 0:
        raise ValueError(f"{name} must be a number of seconds > 0, got {said!r}")


def check_durations(or_none: bool = False, **said: object) -> None:
    """Refuse, when the DAG is parsed, what a task would fail on after much of its work has been done."""
    for name, one in said.items():
        if not isinstance(one, timedelta) and not (or_none and one is None):
            raise ValueError(f"{name} must be a timedelta, such as timedelta(hours=2), got {one!r}")


def duration_of(name: str, said: object) -> timedelta:
    """A duration that may also be given as seconds; ``ValueError`` for another value.

    >>> duration_of("min_duration", 90)
    datetime.timedelta(seconds=90)
    """
    if isinstance(said, timedelta):
        return said
    if isinstance(said, bool) or not isinstance(said, (int, float)):
        raise ValueError(f"{name} must be a timedelta or a number of seconds, got {said!r}")
    return timedelta(seconds=said)


def number_or_share(name: str, said: int | str, of: int) -> int:
    """A number of things, as such or as a share of all of them, and at least one; ``ValueError`` for another value.

    >>> [number_or_share("max_parallel", said, 10) for said in (2, "25%", "1%")]
    [2, 2, 1]
    """
    text = str(said).strip()
    number = text.removesuffix("%")
    if isinstance(said, bool) or not number.isdecimal() or int(number) < 1 or (text != number and int(number) > 100):
        raise ValueError(f"{name} must be a number of nodes >= 1 or a percentage such as '25%', got {said!r}")
    return max(1, of * int(number) // 100) if text != number else int(number)


def whole_number(name: str, said: Any, least: int | None = None) -> int:
    """A number, also one that a template has made; ``ValueError`` for another value."""
    try:
        number = int(said)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {said!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be >= {least}, got {number}")
    return number


def has_template(value: object) -> bool:
    """True for a template, and for a list or a dict with one in it.

    >>> has_template({"nodes": ["{{ params.count }}"]}), has_template({"nodes": [4]})
    (True, False)
    """
    if isinstance(value, dict):
        return any(map(has_template, value.values()))
    return any(map(has_template, value)) if isinstance(value, (list, tuple)) else is_template(value)


@cache
def _parameters(operator: type) -> tuple[str, ...]:
    inits = (base.__init__ for base in operator.__mro__)  # type: ignore[misc]
    return tuple(dict.fromkeys(name for init in inits for name in inspect.signature(init).parameters))


def check_arguments(
    operator: type, task_id: object, given: Iterable[str], remedy: Callable[[str], str] = lambda name: ""
) -> None:
    """Raise ``TypeError`` for arguments that an operator has not, with the nearest name or the caller's remedy."""
    known = _parameters(operator)

    def near(name: str) -> str:
        meant = _ELSEWHERE.get(name)
        return f"did you mean {meant!r}?" if meant in known else remedy(name)

    # Airflow's own begin with an underscore.
    unknown = [name for name in given if name not in known and not name.startswith("_")]
    if unknown:
        wrong = (f"{name!r}: {near(name) or name_remedy(name, known, 'see its docstring')}" for name in unknown)
        name = getattr(operator, "custom_operator_name", operator.__name__)
        raise TypeError(f"{name} {task_id} has no parameter {'; '.join(wrong)}")


def script_text(script: Any) -> Any:
    """Keep the text of a script, which has several lines, from being taken for the name of a file; a path is one."""
    script = path_text(script)
    return no_file(script) if isinstance(script, str) and "\n" in script else script


def shell_path(path: object) -> str:
    """What is wrong with a path on the cluster that only a shell would understand; empty for any other, and a template.

    >>> shell_path("/scratch/$USER/run"), shell_path("run~1/%j.out")
    ("'/scratch/$USER/run' is for a shell to understand: write the whole path", '')
    """
    is_one = isinstance(path, str) and not is_template(path) and _HOME_OR_VARIABLE.search(path)
    return f"{path!r} is for a shell to understand: write the whole path" if is_one else ""


def path_text(path: Any) -> Any:
    """A path as text; a text may be one, and nothing else is changed."""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def path_pairs(name: str, files: Any) -> Any:
    """Pairs of paths, all of which are templates: of a mapping Airflow renders the values only."""
    if isinstance(files, Mapping):
        files = no_file([list(pair) for pair in files.items()])
    is_pairs = isinstance(files, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in files
    )
    if files and not is_pairs and not is_template(files):
        raise ValueError(f"{name} must say from where to where, such as {{'out.json': 'results/'}}, got {files!r}")
    for pair in files if is_pairs else ():
        if problem := shell_path(pair[name == "upload"]):
            raise ValueError(f"{name}: {problem}")
    return files or []


def no_file(value: Any) -> Any:
    """Keep Airflow from taking a text for the name of a template, as it does with all that end like one.

    Scripts whose last line calls another, and paths on the cluster, end so. What is added is ``COMMENT``.
    """
    if isinstance(value, str):
        return value + COMMENT if value.endswith(SCRIPTS) else value
    if type(value) in (list, tuple):
        return type(value)(map(no_file, value))
    if type(value) is dict:
        return {name: no_file(one) for name, one in value.items()}
    return value


def is_on(option: bool | str | None) -> bool:
    """True for an option that is on once its template has been rendered.

    >>> is_on(True), is_on("False"), is_on("{}".format(None))
    (True, False, False)
    """
    return str(option).lower() not in _NO


def check_choice(name: str, said: object, choices: Collection[object]) -> None:
    """Raise ``ValueError`` for a value that is none of the choices; a template is checked when it is rendered.

    >>> check_choice("mode", "kill", ("asap", "force"))
    Traceback (most recent call last):
    ValueError: mode must be one of 'asap', 'force', got 'kill'
    """
    if said not in choices and not is_template(said):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {said!r}")


def moment_of(what: str, said: datetime | str | None) -> datetime | None:
    """Parse a date and time; None for a template that rendered to nothing. ``ValueError`` for anything else.

    >>> moment_of("since", "2026-11-21T20:00:00+01:00").hour
    20
    >>> moment_of("since", "noon")
    Traceback (most recent call last):
    ValueError: since='noon' is not a date and time, such as 2026-11-21T20:00:00+01:00
    """
    said = said.strip() if isinstance(said, str) else said
    if said in (None, "", "None"):
        return None
    import pendulum

    try:
        # Without a zone it would otherwise be taken as UTC.
        parsed = pendulum.parse(said, tz=None) if isinstance(said, str) else said
    except ValueError:
        raise ValueError(f"{what}={said!r} is not a date and time, such as 2026-11-21T20:00:00+01:00") from None
    if not isinstance(parsed, datetime) or parsed.tzinfo is None:
        raise ValueError(f"{what}={said!r} is not a date and time with a time zone, such as +01:00")
    return parsed


def needs_a_worker(value: Any) -> bool:
    """True if a template, or one in a list or a dict, needs what only Airflow workers know.

    >>> needs_a_worker({"env": {"RUN": "{{ run_id }} of {{ ti.task_id }}"}})
    False
    >>> needs_a_worker(["echo", "{{ ti.xcom_pull('prepare') }}"])
    True
    """
    return any(map(_asks_for_more, texts_in(value)))


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts_in(list(value.values()))
    elif isinstance(value, (list, tuple, set)):
        for one in value:
            yield from texts_in(one)


def _asks_for_more(text: str) -> bool:
    if not is_template(text):
        return False
    from jinja2 import Environment, TemplateSyntaxError, meta, nodes

    try:
        tree = Environment().parse(text)
    except TemplateSyntaxError:
        # The worker says what is wrong with it.
        return True
    # The triggerer finds no files beside the DAG.
    if meta.find_undeclared_variables(tree) - _VALUES - _TASK_INSTANCE or [*meta.find_referenced_templates(tree)]:
        return True
    names = [name for name in tree.find_all(nodes.Name) if name.name in _TASK_INSTANCE]
    harmless = [
        found.node
        for found in tree.find_all(nodes.Getattr)
        if isinstance(found.node, nodes.Name) and found.node.name in _TASK_INSTANCE and found.attr in _ATTRIBUTES
    ]
    return len(names) > len(harmless)


#: What Jinja does not look into.
_LEFT_ALONE = re.compile(r"\{%-?\s*raw\b.*?\bendraw\s*-?%\}|\{\{.*?\}\}", re.DOTALL)
_COMMENT = "${# begins a comment of Jinja: write {% raw %} before and {% endraw %} after what is no template"


def shell_for_jinja(said: Mapping[str, object], env: Callable[[], Any]) -> list[str]:
    """The problems of templates in which Jinja takes the length of a shell variable for the beginning of a comment."""
    found = [name for name, of in said.items() if any("${#" in _LEFT_ALONE.sub("", text) for text in texts_in(of))]
    return [f"{name}: {_COMMENT}" for name in found if env().comment_start_string == "{#"]
