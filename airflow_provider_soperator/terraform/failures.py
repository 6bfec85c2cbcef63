"""Terraform's errors and warnings, and the failures that they mean: each with its cause, remedy and patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        return cls(
            severity=document.get("severity", "error"),
            summary=_plain(document.get("summary", "")),
            detail=_plain(document.get("detail", "")),
            address=document.get("address", ""),
            place=f"{span['filename']}:{span['start']['line']}" if span else "",
        )

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
    plain = _FRAME.sub("", _COLOUR.sub("", output))
    pieces = _HEADING.split(plain)
    found = []
    for severity, text in zip(pieces[1::2], pieces[2::2], strict=True):
        summary, _, detail = text.strip().partition("\n")
        place = _PLACE.search(detail)
        where = f"{place['file']}:{place['line']}" if place else ""
        found.append(Diagnostic(severity.lower(), summary, _PLACE.sub("", detail).strip(), place=where))
    return tuple(found)


def _plain(text: str) -> str:
    return _COLOUR.sub("", text).strip()


@dataclass(frozen=True, eq=False, kw_only=True)
class Cause:
    """A kind of failure."""

    remedy: str = ""
    #: True if a retry without any change may help.
    retryable: bool = False
    #: Of Terraform's messages about it; this one is in none.
    pattern: str = r"(?!)"

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


#: The binary does not exist, or cannot be run.
NO_TERRAFORM = Cause(
    remedy="install Terraform (https://developer.hashicorp.com/terraform/install) or OpenTofu on the Airflow workers",
)
#: The parser for a recipe's files is not installed.
NO_READER = Cause(remedy="pip install 'airflow-provider-soperator[terraform]'")
#: The Airflow worker lacks what the recipe needs.
UNPREPARED = Cause()
#: The recipe's own folder has a state, which a copy of the recipe would not use.
STATE_ELSEWHERE = Cause()
#: The plan would destroy or replace protected resources.
DESTRUCTION_REFUSED = Cause(remedy="check the reasons, and allow the addresses if this is intended")
#: Another task works in the same folder.
WORKSPACE_BUSY = Cause(remedy="retry once it has ended", retryable=True)
#: The run was interrupted, by a person or because the Airflow worker stops; a retry continues.
INTERRUPTED = Cause(retryable=True)
#: Another process holds the lock of the state, or has died with it.
STATE_LOCKED = Cause(retryable=True, pattern=r"error acquiring the state lock")
#: Terraform could not write its state to the backend, and left it in a file. The next try first pushes the file.
STATE_NOT_SAVED = Cause(retryable=True, pattern=r"failed to (save|persist) state|errored\.tfstate")
#: The state has changed since the plan was made.
PLAN_OUTDATED = Cause(
    remedy="plan again", retryable=True, pattern=r"saved plan is stale|plan file .*different (state|lineage)"
)
#: The state is in another backend than the recipe declares.
BACKEND_CHANGED = Cause(
    pattern=r"backend (configuration|type) changed|backend initialization required|-migrate-state"
    r"|unsetting the previous",
)
#: The recipe requires another version of Terraform.
TERRAFORM_TOO_OLD = Cause(
    remedy="install a Terraform that the recipe's required_version allows, or set the path of one",
    pattern=r"unsupported (terraform|opentofu) core version",
)
#: The folder has no Terraform configuration.
NOT_A_RECIPE = Cause(
    remedy="use the folder with the recipe's .tf files, such as soperator/installations/example",
    pattern=r"no configuration files",
)
#: The recipe could not be downloaded.
RECIPE_MISSING = Cause(
    remedy="check its address and ref, and that this machine may read it",
    pattern=r"failed to download module|module not found|unreadable module|invalid module source",
)
#: A provider that the recipe needs cannot be installed.
PROVIDER_MISSING = Cause(
    remedy="check that this machine reaches the registry, or set a mirror in the CLI configuration "
    "(TF_CLI_CONFIG_FILE)",
    retryable=True,
    pattern=r"failed to (query available provider|install provider)|required plugins are not installed"
    r"|inconsistent dependency lock file|could not connect to registry",
)
#: A variable's value is missing, has the wrong type, or fails a check of the recipe.
INVALID_VARIABLE = Cause(
    remedy="correct the value",
    pattern=r"invalid value for (input )?variable|no value for required variable|invalid variable name"
    r"|resource precondition failed",
)
#: A value for a variable that the recipe does not have.
UNKNOWN_VARIABLE = Cause(pattern=r"values? for undeclared variable")
#: Terraform rejects the recipe.
RECIPE_INVALID = Cause(
    remedy="correct the recipe, or use one of its released versions",
    pattern=r"problems during initiali[sz]ation|unsupported (argument|block type|attribute)|missing required argument"
    r"|reference to undeclared|module not installed|invalid (reference|expression|block definition)"
    r"|duplicate (variable|resource|output|module)|unclosed configuration block",
)
#: A quota is exceeded.
CLOUD_QUOTA_EXCEEDED = Cause(
    remedy="raise the quota, or ask for less; what was created so far is in the state and is kept", pattern=r"quota"
)
#: A provider or backend rejected Terraform's credentials.
UNAUTHENTICATED = Cause(
    remedy="give the Nebius connection a new token (they live for 12 hours) or a service account's key, and a backend "
    "on object storage its AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (the recipe's keys live for a day)",
    pattern=rf"unauthenticated|{_STATUS}401\b|unauthorized|expiredtoken|invalidaccesskeyid|signaturedoesnotmatch"
    r"|no valid credential sources|token (has |is )?(expired|invalid)|(expired|invalid|missing) (iam )?token",
)
#: The account lacks a right.
DENIED = Cause(
    remedy="give the account the role editor on the project, and the rights that the message names",
    pattern=rf"permissiondenied|permission_denied|{_STATUS}403\b|accessdenied|forbidden",
)
#: An object of that name exists, but is not in the state.
ALREADY_THERE = Cause(
    remedy="use another name, or the workspace and backend with which it was created; import manually created objects "
    "with `terraform import`",
    pattern=r"alreadyexists|already_exists|already exists",
)
#: Not enough machines at present.
NOT_ENOUGH_RESOURCES = Cause(
    remedy="check the limit of the capacity block, and who holds the rest of it; what was created so far is kept",
    retryable=True,
    pattern=r"not ?enough ?resources|resource_?exhausted",
)
#: Any other failure; Terraform's own messages give the cause.
TERRAFORM_FAILED = Cause(retryable=True)
#: What Terraform's messages can be about: failures of Terraform itself come before errors of the cloud.
_IN_MESSAGES = (
    STATE_LOCKED, STATE_NOT_SAVED, PLAN_OUTDATED, BACKEND_CHANGED, TERRAFORM_TOO_OLD, NOT_A_RECIPE, RECIPE_MISSING,
    PROVIDER_MISSING, INVALID_VARIABLE, UNKNOWN_VARIABLE, RECIPE_INVALID, CLOUD_QUOTA_EXCEEDED, UNAUTHENTICATED,
    DENIED, ALREADY_THERE, NOT_ENOUGH_RESOURCES,
)  # fmt: skip


def explain(found: Sequence[Diagnostic], command: str) -> TerraformError:
    """The error for the diagnostics of a failed command."""
    wrong = errors(found)
    told = "; ".join(_told(one) for one in wrong[:_TOLD]) or "it failed without a message"
    more = f"; and {len(wrong) - _TOLD} more errors" if len(wrong) > _TOLD else ""
    what = f"terraform {command}: {told}{more}"
    text = "\n".join(one.words for one in wrong)
    cause = next((one for one in _IN_MESSAGES if one.is_in(text)), TERRAFORM_FAILED)
    if cause is CLOUD_QUOTA_EXCEEDED and (names := [name for name in _QUOTA.findall(text) if not _HOST.search(name)]):
        what = f"the quota {', '.join(dict.fromkeys(names))} is exceeded ({what})"
    return cause.error(what, diagnostics=found)


def _told(one: Diagnostic) -> str:
    words = one.words if len(one.words) <= _LONGEST else f"{one.words[:_LONGEST]}…"
    return f"{words} ({one.where})" if one.where else words
