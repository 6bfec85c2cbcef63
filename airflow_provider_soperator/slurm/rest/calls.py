"""Calls to slurmrestd, the reading of their answers, and requests that take several calls."""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import singledispatch
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote, urlencode

from airflow_provider_soperator.slurm import sbatch_arguments
from airflow_provider_soperator.slurm.errors import SlurmError, UnreadableAnswer, classify
from airflow_provider_soperator.slurm.notations import Duration, ExitCode, NoDuration
from airflow_provider_soperator.slurm.requests.commands import TIMEOUT, Request

T = TypeVar("T")

#: The supported versions of slurmrestd's interface, v0.0.…: Slurm 24.05 to 26.05.
VERSIONS = tuple(sorted(int(version.rpartition(".")[2]) for version in sbatch_arguments.PAYLOAD_VERSIONS))


class Unsupported(Exception):
    """slurmrestd, or this version of its interface, has no call for a request; nothing was sent."""

    def __init__(self, what: str, instead: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.instead = instead or "use the ssh, kubernetes or local transport, which run Slurm's commands"


@dataclass
class Owner:
    """What is known of the connection's user beside its name, which may be unknown where slurmrestd runs."""

    #: The number, once an answer has told it.
    number: int | None = None
    #: The last job that was submitted, until its record tells the number.
    job: int | None = None


@dataclass(frozen=True)
class Site:
    """The user of the connection, and the version of slurmrestd."""

    #: Version of the interface, v0.0.…
    version: int
    #: The user of the token; empty if it names none.
    user: str = ""
    #: The default working folder of jobs, as a login's home would be.
    home: str = ""
    owner: Owner = field(default_factory=Owner)

    def require(self, version: int, what: str) -> None:
        """Raise ``Unsupported`` if slurmrestd is older than this version."""
        if self.version < version:
            raise Unsupported(f"slurmrestd v0.0.{self.version} cannot {what}; v0.0.{version} and later can")


@dataclass(frozen=True)
class RestCall:
    """One HTTP request."""

    method: str
    #: The plugin, and the path after the version: ``slurm/job/7``.
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    timeout: float = TIMEOUT

    def target(self, version: int) -> str:
        plugin, _, rest = self.path.partition("/")
        query = f"?{urlencode(self.query, quote_via=quote)}" if self.query else ""
        return f"/{plugin}/v0.0.{version}/{rest}{query}"

    def __str__(self) -> str:
        return f"{self.method} /{self.path}"


@dataclass(frozen=True)
class RestAnswer:
    """An answer of slurmrestd: an HTTP status, and JSON, which may disagree."""

    status: int
    data: Mapping[str, Any]
    #: Bytes of the data.
    size: int = 0


#: Generator that yields calls, is sent their answers, and returns the result of the request.
RestSteps = Generator[RestCall, RestAnswer, T]


@singledispatch
def _steps(request: object, site: Site) -> RestSteps[Any]:
    raise Unsupported(f"slurmrestd has no call for {type(request).__name__}")


def steps(request: Request[T], site: Site) -> RestSteps[T]:
    """The calls for a request. ``Unsupported`` is raised before the first of them."""
    found: RestSteps[T] = _steps(request, site)
    return found


#: Registers the function that makes the calls for a type of request.
handles = _steps.register


def unsupported(what: str, instead: str = "") -> NoReturn:
    raise Unsupported(f"slurmrestd cannot {what}", instead)


def segment(text: object) -> str:
    return quote(str(text), safe="")


Json = Mapping[str, Any]

#: What reading a record raises that is not as it should be.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
#: The program's name in errors.
NAME = "slurmrestd"
#: Error numbers below are Slurm's own, with the messages of its commands; from here on they are slurmrestd's.
_REST_ERRORS = 9000
#: From here on a time is one of Slurm's marks for "none" and "never".
_NEVER = 0xFFFF_FFFD


def asked(call: RestCall, command: str = NAME) -> Generator[RestCall, RestAnswer, Json]:
    """Make a call; returns its answer, or raises its error.

    ``command`` is the equivalent command of Slurm, if its messages have special meanings.
    """
    answer = yield call
    found = tuple(errors(answer))
    if found:
        raise error(found, command)
    if answer.status >= 400:
        raise UnreadableAnswer(f"HTTP status {answer.status} without an error message", NAME)
    return answer.data


def errors(answer: RestAnswer) -> Iterable[Json]:
    """Errors in an answer, which may be there with status 200, too. Warnings do not count."""
    return answer.data.get("errors") or ()


def error(found: Iterable[Json], command: str = NAME) -> SlurmError:
    return classify(command, "; ".join(dict.fromkeys(map(_words, found))))


def _words(one: Json) -> str:
    number_ = one.get("error_number") or 0
    description = str(one.get("description") or "")
    # Slurm's own messages are those of its commands; without a number only the description is meaningful.
    if 0 < number_ < _REST_ERRORS:
        return str(one.get("error") or description)
    return description or str(one.get("error") or "")


def check_each(data: Json, ignored: Container[int] = ()) -> None:
    """Raise the errors among the results for each of several jobs."""
    results = (one.get("error") or {} for one in data.get("status") or ())
    found = [one for one in results if one.get("code") and one["code"] not in ignored]
    if found:
        texts = dict.fromkeys(str(one.get("string") or one.get("message")) for one in found)
        raise classify(NAME, "; ".join(texts))


def number(value: Any) -> int | None:
    """A number, perhaps as ``{"set": …, "infinite": …, "number": …}``; None if there is none.

    >>> number({"set": True, "infinite": False, "number": 7}), number({"set": False, "number": 0}), number(7)
    (7, None, 7)
    """
    if isinstance(value, Mapping):
        return None if value.get("infinite") or not value.get("set") else int(value["number"])
    return None if value is None else int(value)


def moment(value: Any) -> datetime | None:
    """A time; None for 0 and for Slurm's marks at the end of 32 bits."""
    seconds = number(value)
    return datetime.fromtimestamp(seconds, timezone.utc) if seconds and seconds < _NEVER else None


def time_limit(value: Any) -> Duration:
    """A limit in minutes; that of the partition if there is none.

    >>> time_limit({"set": False, "infinite": True, "number": 0}).name, str(time_limit({"set": True, "number": 90}))
    ('UNLIMITED', '1:30:00')
    """
    if isinstance(value, Mapping) and value.get("infinite"):
        return NoDuration.UNLIMITED
    found = number(value)
    return NoDuration.PARTITION_LIMIT if found is None else timedelta(minutes=found)


def seconds(value: Any) -> timedelta | None:
    found = number(value)
    return None if found is None else timedelta(seconds=found)


def exit_code(value: Json | None) -> ExitCode:
    value = value or {}
    signal = (value.get("signal") or {}).get("id")
    return ExitCode(number(value.get("return_code")) or 0, number(signal) or 0)
