"""Terraform's errors and warnings, and the failures that they mean: each with its cause, remedy and patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.values import moment_of

#: The frame around an error.
_FRAME = re.compile(r"^[╷│╵] ?", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEADING = re.compile(r"^(Error|Warning): ", re.MULTILINE)
_PLACE = re.compile(r"^\s+on (?P<file>\S+) line (?P<line>\d+).*\n(?:\s+\d+: .*\n)*", re.MULTILINE)
#: Errors to quote in the message; the log has all of them.
_TOLD = 3
_LONGEST = 800

#: Names of quotas begin with the name of a service; so do host names.
_QUOTA = re.compile(r"\b(?:compute|vpc|mk8s|storage|iam|capacity|msp|registry|logging)\.[a-z0-9.-]*[a-z0-9]")
_HOST = re.compile(r"\.(nebius|cloud)\b")
#: Who holds a lock.
_FIELD = re.compile(r"^\s*(ID|Operation|Who|Created):[ \t]*(\S.*?)\s*$", re.MULTILINE)
_HELD = re.compile(r"already locked: ID=(\S+)")
#: A number is a status only where it is called one.
_STATUS = r"\b(?:status|status ?code|http|response|error)\W{1,3}"


@dataclass(frozen=True)
class Diagnostic:
    """One error or warning."""

    severity: str
    summary: str
    detail: str = ""
    address: str = ""
    place: str = ""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Diagnostic:
        """A diagnostic from Terraform's JSON, without lines of code, which may contain our values."""
        span = document.get("range")
        place = f"{span['filename']}:{span['start']['line']}" if span else ""
        summary, detail = (_COLOUR.sub("", document.get(name, "")).strip() for name in ("summary", "detail"))
        return cls(document["severity"], summary, detail, document.get("address", ""), place)

    @property
    def is_error(self) -> bool:
        return self.severity == "error"

    @property
    def words(self) -> str:
        """Summary and detail in one line."""
        return " ".join(f"{self.summary}: {self.detail}".strip(": ").split())

    @property
    def where(self) -> str:
        return ", ".join(filter(None, (self.address, self.place)))

    def lines(self) -> Iterator[str]:
        yield f"{'Error' if self.is_error else 'Warning'}: {self.summary}" + (f" ({self.where})" if self.where else "")
        for line in self.detail.splitlines():
            yield f"  {line}".rstrip()


def errors(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    return tuple(one for one in found if one.is_error)


def from_text(output: str) -> tuple[Diagnostic, ...]:
    """Errors and warnings in the output of a command without ``-json``."""
    pieces, found = _HEADING.split(_FRAME.sub("", _COLOUR.sub("", output))), []
    for severity, text in zip(pieces[1::2], pieces[2::2], strict=True):
        summary, _, detail = text.strip().partition("\n")
        place = _PLACE.search(detail)
        where = f"{place['file']}:{place['line']}" if place else ""
        found.append(Diagnostic(severity.lower(), summary, _PLACE.sub("", detail).strip(), place=where))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Cause:
    """A kind of failure."""

    remedy: str = ""
    #: True if a retry without any change may help.
    retryable: bool = field(default=False, kw_only=True)
    #: Of Terraform's messages about it; this one is in none.
    pattern: str = field(default=r"(?!)", kw_only=True)

    def is_in(self, text: str) -> bool:
        """True if a message is about this failure."""
        return re.search(self.pattern, text, re.IGNORECASE) is not None

    def error(self, what: str, remedy: str = "", diagnostics: Sequence[Diagnostic] = ()) -> TerraformError:
        return TerraformError(self, what, remedy or self.remedy, tuple(diagnostics))


class TerraformError(Exception):
    """Terraform has failed.

    ``what`` tells of the failure, ``remedy`` is the remedy, ``retryable`` tells if a retry without any change may help,
    and ``diagnostics`` has Terraform's own messages.
    """

    def __init__(self, cause: Cause, what: str, remedy: str, diagnostics: tuple[Diagnostic, ...]) -> None:
        self.cause, self.what, self.remedy, self.diagnostics = cause, what, remedy, diagnostics
        self.retryable = cause.retryable
        super().__init__(": ".join(filter(None, (what, remedy))))


NO_TERRAFORM = Cause(
    "install Terraform (https://developer.hashicorp.com/terraform/install) or OpenTofu on the Airflow workers"
)
NO_READER = Cause("pip install 'airflow-provider-soperator[terraform]'")
#: The Airflow worker lacks what the recipe needs.
UNPREPARED = Cause()
#: The recipe's own folder has a state, which a copy of the recipe would not use.
STATE_ELSEWHERE = Cause()
DESTRUCTION_REFUSED = Cause("check the reasons, and allow the addresses if this is intended")
WORKSPACE_BUSY = Cause("retry once it has ended", retryable=True)
#: By a person, or because the Airflow worker stops; a retry continues.
INTERRUPTED = Cause(retryable=True)
#: Another process holds the lock, or has died with it.
STATE_LOCKED = Cause(retryable=True, pattern=r"error acquiring the state lock")
#: Terraform has left its state in a file, which the next try pushes first.
STATE_NOT_SAVED = Cause(retryable=True, pattern=r"failed to (save|persist) state|errored\.tfstate")
PLAN_OUTDATED = Cause(
    "plan again", retryable=True, pattern=r"saved plan is stale|plan file .*different (state|lineage)"
)
#: The state is in another backend than the recipe declares.
BACKEND_CHANGED = Cause(
    pattern=r"backend (configuration|type) changed|backend initialization required|-migrate-state"
    r"|unsetting the previous|state migration",
)
NO_WORKSPACES = Cause(
    'use the workspace "default", and a state of its own for each cluster', pattern=r"workspaces not supported"
)
TERRAFORM_TOO_OLD = Cause(
    "install a Terraform that the recipe's required_version allows, or set the path of one",
    pattern=r"unsupported (terraform|opentofu) core version",
)
NOT_A_RECIPE = Cause(
    "use the folder with the recipe's .tf files, such as soperator/installations/example",
    pattern=r"no configuration files",
)
RECIPE_MISSING = Cause(
    "check its address and ref, and that this machine may read it",
    pattern=r"failed to download module|module not found|unreadable module|invalid module source",
)
#: The workspace has kept the providers of an earlier release of the recipe.
PROVIDER_OUTDATED = Cause(pattern=r"does not match configured version constraint")
PROVIDER_MISSING = Cause(
    "check that this machine reaches the registry, or set a mirror in the CLI configuration (TF_CLI_CONFIG_FILE)",
    retryable=True,
    pattern=r"failed to (query available provider|install provider)|required plugins are not installed"
    r"|inconsistent dependency lock file|could not connect to registry",
)
INVALID_VARIABLE = Cause(
    "correct the value",
    pattern=r"invalid value for (input )?variable|no value for required variable|invalid variable name"
    r"|resource precondition failed",
)
UNKNOWN_VARIABLE = Cause(pattern=r"values? for undeclared variable")
RECIPE_INVALID = Cause(
    "correct the recipe, or use one of its released versions",
    pattern=r"problems during initiali[sz]ation|unsupported (argument|block type|attribute)|missing required argument"
    r"|reference to undeclared|module not installed|invalid (reference|expression|block definition)"
    r"|duplicate (variable|resource|output|module)|unclosed configuration block",
)
CLOUD_QUOTA_EXCEEDED = Cause(
    "raise the quota, or ask for less; what was created so far is in the state and is kept", pattern=r"quota"
)
UNAUTHENTICATED = Cause(
    "give the Nebius connection a new token (they live for 12 hours) or a service account's key, and a backend "
    "on object storage its AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (the recipe's keys live for a day)",
    pattern=rf"unauthenticated|{_STATUS}401\b|unauthorized|expiredtoken|invalidaccesskeyid|signaturedoesnotmatch"
    r"|no valid credential sources|token (has |is )?(expired|invalid)|(expired|invalid|missing) (iam )?token",
)
DENIED = Cause(
    "give the account the role editor on the project, and the rights that the message names",
    pattern=rf"permissiondenied|permission_denied|{_STATUS}403\b|accessdenied|forbidden",
)
#: An object of that name is not in the state.
ALREADY_THERE = Cause(
    "use another name, or the workspace and backend with which it was created; import manually created objects "
    "with `terraform import`",
    pattern=r"alreadyexists|already_exists|already exists|alreadyownedbyyou|cannot re-use a name that is still in use",
)
NOT_ENOUGH_RESOURCES = Cause(
    "check the limit of the capacity block, and who holds the rest of it; what was created so far is kept",
    retryable=True,
    pattern=r"not ?enough ?resources|resource_?exhausted",
)
TERRAFORM_FAILED = Cause(retryable=True)
#: What Terraform's messages can be about: failures of Terraform itself come before errors of the cloud.
_IN_MESSAGES = (
    STATE_LOCKED, STATE_NOT_SAVED, PLAN_OUTDATED, BACKEND_CHANGED, NO_WORKSPACES, TERRAFORM_TOO_OLD, NOT_A_RECIPE,
    RECIPE_MISSING, PROVIDER_OUTDATED, PROVIDER_MISSING, INVALID_VARIABLE, UNKNOWN_VARIABLE, RECIPE_INVALID,
    CLOUD_QUOTA_EXCEEDED, UNAUTHENTICATED, DENIED, ALREADY_THERE, NOT_ENOUGH_RESOURCES,
)  # fmt: skip


def explain(found: Sequence[Diagnostic], command: str) -> TerraformError:
    """The error for the diagnostics of a failed command."""
    wrong = errors(found)
    told = "; ".join(_told(one) for one in wrong[:_TOLD]) or "it failed without a message"
    more = f"; and {len(wrong) - _TOLD} more errors" if len(wrong) > _TOLD else ""
    what = f"terraform {command}: {told}{more}"
    text = "\n".join(one.words for one in wrong)
    causes = [one for one in _IN_MESSAGES if one.is_in(text)] or [TERRAFORM_FAILED]
    # A lock that is not described may be refused for another reason, such as the backend's keys.
    cause = causes[0] if Lock.read(wrong) else next((one for one in causes if one is not STATE_LOCKED), STATE_LOCKED)
    if cause is CLOUD_QUOTA_EXCEEDED and (names := [name for name in _QUOTA.findall(text) if not _HOST.search(name)]):
        what = f"the quota {', '.join(dict.fromkeys(names))} is exceeded ({what})"
    return cause.error(what, diagnostics=found)


def _told(one: Diagnostic) -> str:
    words = one.words if len(one.words) <= _LONGEST else f"{one.words[:_LONGEST]}…"
    return f"{words} ({one.where})" if one.where else words


@dataclass(frozen=True)
class Lock:
    """Lock that Terraform could not get, from its error message."""

    id: str
    who: str = ""
    operation: str = ""
    created: str = ""

    @classmethod
    def read(cls, diagnostics: Iterable[Diagnostic]) -> Lock | None:
        """The lock in an error; None if the error does not describe it."""
        for one in diagnostics:
            said = dict(_FIELD.findall(one.detail))
            # Terraform's http backend describes the requested lock instead of the one that is held.
            if (held := _HELD.search(one.detail)) and held[1] != said.get("ID"):
                return cls(id=held[1])
            if "ID" in said:
                return cls(said["ID"], said.get("Who", ""), said.get("Operation", ""), said.get("Created", ""))
        return None

    @property
    def created_at(self) -> float | None:
        """Its creation in seconds since the epoch; None if it cannot be parsed."""
        return seconds_of(self.created.replace(" +0000 UTC", "Z"))

    def __str__(self) -> str:
        operation = self.operation.removeprefix("OperationType").lower() or "an operation"
        since = f" since {self.created}" if self.created else ""
        return f"{self.who or 'another process'} holds the lock of the state for {operation}{since} ({self.id})"

    def belongs_to(self, who: str, began: float, last_sign: float) -> bool:
        """True if it is the lock of a run with this user, start and last sign of life.

        At its last sign of life that run held the lock, so no other process did. A lock that was created between the
        start of the run and that sign, on the same machine and so by the same clock, is the run's.
        """
        return self.who == who and self.created_at is not None and began <= self.created_at <= last_sign


def seconds_of(timestamp: str) -> float | None:
    """Seconds since the epoch; None for a text that is not a date and time.

    >>> seconds_of("2026-11-22T10:55:35.496482+09:00"), seconds_of("2026-11-22 01:55:35.496482762Z")
    (1795312535.496482, 1795312535.496482)
    """
    try:
        moment = moment_of("timestamp", timestamp)
    except ValueError:
        return None
    return moment.timestamp() if moment else None
