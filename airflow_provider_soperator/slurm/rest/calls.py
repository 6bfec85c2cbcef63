"""The form of what is asked of slurmrestd: single calls, their answers, and requests that take several of them."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote, urlencode

from airflow_provider_soperator.slurm import payload
from airflow_provider_soperator.slurm.requests.base import TIMEOUT, Request

T = TypeVar("T")

#: The versions of slurmrestd's interface that are known here, v0.0.…: Slurm 24.05 to 26.05.
VERSIONS = tuple(sorted(int(version.rpartition(".")[2]) for version in payload.VERSIONS))


class Unsupported(Exception):
    """slurmrestd, or this version of its interface, has no call for a request; nothing was sent."""

    def __init__(self, what: str, instead: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.instead = instead or "use the ssh, kubernetes or local transport, which run Slurm's commands"


@dataclass(frozen=True)
class Site:
    """What a question needs to know of who asks, and of the slurmrestd that is asked."""

    #: Of the interface, v0.0.…
    version: int
    #: In whose name; empty if the token does not say.
    user: str = ""
    #: Where jobs start that do not say it themselves, as they would in a login's home.
    home: str = ""
    environment: tuple[str, ...] = payload.ENVIRONMENT

    def require(self, version: int, what: str) -> None:
        """Refuse what slurmrestd can do only since a version."""
        if self.version < version:
            raise Unsupported(f"slurmrestd v0.0.{self.version} cannot {what}; v0.0.{version} and later can")


@dataclass(frozen=True)
class Call:
    """One HTTP request.

    >>> Call("GET", "slurmdb/jobs/", (("step", "1"), ("step", "2"))).target(42)
    '/slurmdb/v0.0.42/jobs/?step=1&step=2'
    """

    method: str
    #: The plugin and what follows the version: ``slurm/job/7``.
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
class Answer:
    """What slurmrestd answered: an HTTP status, and JSON that need not agree with it."""

    status: int
    data: Mapping[str, Any]


#: Yields calls, is sent their answers, and returns what the request was for.
Steps = Generator[Call, Answer, T]


@singledispatch
def _steps(request: object, site: Site) -> Steps[Any]:
    raise Unsupported(f"slurmrestd has no call for {type(request).__name__}")


def steps(request: Request[T], site: Site) -> Steps[T]:
    """The calls that answer a request. ``Unsupported`` comes before the first of them."""
    found: Steps[T] = _steps(request, site)
    return found


#: By which the other modules say how their requests are done.
handles = _steps.register


def unsupported(what: str, instead: str = "") -> NoReturn:
    raise Unsupported(f"slurmrestd cannot {what}", instead)


def segment(text: object) -> str:
    """A name as one part of a path."""
    return quote(str(text), safe="")
