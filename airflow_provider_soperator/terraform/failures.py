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


class TerraformError(Exception):
    """Terraform has failed.

    ``what`` is the cause, ``remedy`` the remedy, ``retryable`` tells if a retry without any change may help, and
    ``diagnostics`` has Terraform's own messages.
    """

    retryable = False
    remedy = ""
    #: Of Terraform's messages; this one is in none.
    pattern = r"(?!)"

    def __init__(self, what: str, remedy: str = "", diagnostics: Sequence[Diagnostic] = ()) -> None:
        self.what = what
        self.remedy = remedy or type(self).remedy
        self.diagnostics = tuple(diagnostics)
        super().__init__(": ".join(filter(None, (what, self.remedy))))

    @classmethod
    def is_in(cls, text: str) -> bool:
        """True if a message is about this failure."""
        return re.search(cls.pattern, text, re.IGNORECASE) is not None


class NoTerraform(TerraformError):
    """The binary does not exist, or cannot be run."""

    remedy = "install Terraform (https://developer.hashicorp.com/terraform/install) or OpenTofu on the Airflow workers"


class NoReader(TerraformError):
    """The parser for a recipe's files is not installed."""

    remedy = "pip install 'airflow-provider-soperator[terraform]'"


class StateElsewhere(TerraformError):
    """The recipe's own folder has a state, which a copy of the recipe would not use."""


class DestructionRefused(TerraformError):
    """The plan would destroy or replace protected resources."""

    remedy = "check the reasons, and allow the addresses if this is intended"


class WorkspaceBusy(TerraformError):
    """Another task works in the same folder."""

    retryable = True
    remedy = "retry once it has ended"


class Interrupted(TerraformError):
    """The run was interrupted, by a person or because the Airflow worker stops; a retry continues."""

    retryable = True


class StateLocked(TerraformError):
    """Another process holds the lock of the state, or has died with it."""

    pattern = r"error acquiring the state lock"
    retryable = True


class StateNotSaved(TerraformError):
    """Terraform could not write its state to the backend, and left it in a file."""

    pattern = r"failed to (save|persist) state|errored\.tfstate"
    # The next try first pushes the file to the backend.
    retryable = True


class PlanOutdated(TerraformError):
    """The state has changed since the plan was made."""

    pattern = r"saved plan is stale|plan file .*different (state|lineage)"
    retryable = True
    remedy = "plan again"


class BackendChanged(TerraformError):
    """The state is in another backend than the recipe declares."""

    pattern = (
        r"backend (configuration|type) changed|backend initialization required|-migrate-state|unsetting the previous"
    )


class TerraformTooOld(TerraformError):
    """The recipe requires another version of Terraform."""

    pattern = r"unsupported (terraform|opentofu) core version"
    remedy = "install a Terraform that the recipe's required_version allows, or set the path of one"


class NotARecipe(TerraformError):
    """The folder has no Terraform configuration."""

    pattern = r"no configuration files"
    remedy = "use the folder with the recipe's .tf files, such as soperator/installations/example"


class RecipeMissing(TerraformError):
    """The recipe could not be downloaded."""

    pattern = r"failed to download module|module not found|unreadable module|invalid module source"
    remedy = "check its address and ref, and that this machine may read it"


class ProviderMissing(TerraformError):
    """A provider that the recipe needs cannot be installed."""

    pattern = (
        r"failed to (query available provider|install provider)|required plugins are not installed"
        r"|inconsistent dependency lock file|could not connect to registry"
    )
    retryable = True
    remedy = (
        "check that this machine reaches the registry, or set a mirror in the CLI configuration (TF_CLI_CONFIG_FILE)"
    )


class InvalidVariable(TerraformError):
    """A variable's value is missing, has the wrong type, or fails a check of the recipe."""

    pattern = (
        r"invalid value for (input )?variable|no value for required variable|invalid variable name"
        r"|resource precondition failed"
    )
    remedy = "correct the value"


class UnknownVariable(TerraformError):
    """A value for a variable that the recipe does not have."""

    pattern = r"values? for undeclared variable"


class RecipeInvalid(TerraformError):
    """Terraform rejects the recipe."""

    pattern = (
        r"problems during initiali[sz]ation|unsupported (argument|block type|attribute)|missing required argument"
        r"|reference to undeclared|module not installed|invalid (reference|expression|block definition)"
        r"|duplicate (variable|resource|output|module)|unclosed configuration block"
    )
    remedy = "correct the recipe, or use one of its released versions"


class CloudQuotaExceeded(TerraformError):
    """A quota is exceeded."""

    pattern = r"quota"
    remedy = "raise the quota, or ask for less; what was created so far is in the state and is kept"


class Unauthenticated(TerraformError):
    """A provider or backend rejected Terraform's credentials."""

    pattern = (
        rf"unauthenticated|{_STATUS}401\b|unauthorized|expiredtoken|invalidaccesskeyid|signaturedoesnotmatch"
        r"|no valid credential sources|token (has |is )?(expired|invalid)|(expired|invalid|missing) (iam )?token"
    )
    remedy = (
        "give the Nebius connection a new token (they live for 12 hours) or a service account's key, and a backend "
        "on object storage its AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (the recipe's keys live for a day)"
    )


class Denied(TerraformError):
    """The account lacks a right."""

    pattern = rf"permissiondenied|permission_denied|{_STATUS}403\b|accessdenied|forbidden"
    remedy = "give the account the role editor on the project, and the rights that the message names"


class AlreadyThere(TerraformError):
    """An object of that name exists, but is not in the state."""

    pattern = r"alreadyexists|already_exists|already exists"
    remedy = (
        "use another name, or the workspace and backend with which it was created; import manually created objects "
        "with `terraform import`"
    )


class NotEnoughResources(TerraformError):
    """Not enough machines at present."""

    pattern = r"not ?enough ?resources|resource_?exhausted"
    retryable = True
    remedy = "check the limit of the capacity block, and who holds the rest of it; what was created so far is kept"


class TerraformFailed(TerraformError):
    """Any other failure; Terraform's own messages give the cause."""

    retryable = True


def explain(found: Sequence[Diagnostic], command: str) -> TerraformError:
    """The error for the diagnostics of a failed command."""
    wrong = errors(found)
    told = "; ".join(_told(one) for one in wrong[:_TOLD]) or "it failed without a message"
    more = f"; and {len(wrong) - _TOLD} more errors" if len(wrong) > _TOLD else ""
    what = f"terraform {command}: {told}{more}"
    text = "\n".join(one.words for one in wrong)
    # In the order of this module: failures of Terraform itself come before errors of the cloud.
    kind = next((kind for kind in TerraformError.__subclasses__() if kind.is_in(text)), TerraformFailed)
    if kind is CloudQuotaExceeded and (names := [name for name in _QUOTA.findall(text) if not _HOST.search(name)]):
        what = f"the quota {', '.join(dict.fromkeys(names))} is exceeded ({what})"
    return kind(what, diagnostics=found)


def _told(one: Diagnostic) -> str:
    words = one.words if len(one.words) <= _LONGEST else f"{one.words[:_LONGEST]}…"
    return f"{words} ({one.where})" if one.where else words
