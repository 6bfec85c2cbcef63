"""Failures of Terraform: each with its cause and what to do about it, and the words by which it is recognized."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_soperator.terraform.diagnostics import Diagnostic, errors

#: Errors that are told in the first line; the log has all of them.
_TOLD = 3
_LONGEST = 800

#: Names of quotas begin with a service's; names of its hosts do too.
_QUOTA = re.compile(r"\b(?:compute|vpc|mk8s|storage|iam|capacity|msp|registry|logging)\.[a-z0-9.-]*[a-z0-9]")

#: A number is a status only where it is called one.
_STATUS = r"\b(?:status|status ?code|http|response|error)\W{1,3}"


class TerraformError(Exception):
    """Terraform was asked and did not do it, or not all of it.

    ``what`` says what was found, ``remedy`` what to do about it, ``retryable`` whether another try may help without
    any change, and ``diagnostics`` has Terraform's own words.
    """

    retryable = False
    remedy = ""

    def __init__(self, what: str, remedy: str = "", diagnostics: Sequence[Diagnostic] = ()) -> None:
        self.what = what
        self.remedy = remedy or type(self).remedy
        self.diagnostics = tuple(diagnostics)
        super().__init__(": ".join(filter(None, (what, self.remedy))))


class NoTerraform(TerraformError):
    """The binary is not there, or does not run."""

    remedy = "install Terraform on the workers (https://developer.hashicorp.com/terraform/install) or OpenTofu"


class NoReader(TerraformError):
    """The reader of a recipe's files is not installed."""

    remedy = "pip install 'airflow-provider-soperator[terraform]'"


class TerraformTooOld(TerraformError):
    """The recipe wants another version."""

    remedy = "install a Terraform that the recipe's required_version allows, or name one by its path"


class NotARecipe(TerraformError):
    """There is nothing that Terraform could carry out."""

    remedy = "name the folder that has the recipe's .tf files, such as soperator/installations/example"


class RecipeMissing(TerraformError):
    """The recipe could not be brought here."""

    remedy = "see its address and ref, and whether this machine may read it"


class RecipeInvalid(TerraformError):
    """Terraform cannot make sense of the recipe."""

    remedy = "mend the recipe, or take one of its released versions"


class UnknownVariable(TerraformError):
    """A value was given for a variable that the recipe does not have."""


class InvalidVariable(TerraformError):
    """A variable's value is missing, of another type, or fails a check of the recipe."""

    remedy = "correct the value"


class Unauthenticated(TerraformError):
    """A provider or backend rejected Terraform's credentials."""

    remedy = (
        "give the Nebius connection a new token (they live for 12 hours) or a service account's key, and a backend "
        "on object storage its AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (the recipe's keys live for a day)"
    )


class Denied(TerraformError):
    """The account is known, and may not do this."""

    remedy = "give the account the role editor on the project, and what the message asks for"


class CloudQuotaExceeded(TerraformError):
    """A quota stands against it."""

    remedy = "have the quota raised, or ask for less; what was made so far is in the state and is kept"


class NotEnoughResources(TerraformError):
    """There are not enough machines at present."""

    retryable = True
    remedy = "see what holds the rest of the capacity block, and its limit; what was made so far is kept"


class AlreadyThere(TerraformError):
    """Something of that name exists, and the state knows nothing of it."""

    remedy = (
        "take another name, or the workspace and backend in which it was made; what was made by hand can be taken into "
        "the state by `terraform import`"
    )


class StateLocked(TerraformError):
    """Another process works on the state, or has died while doing so."""

    retryable = True


class StateNotSaved(TerraformError):
    """Terraform could not write its state to the backend, and left it in a file."""

    # The next try gives it to the backend before it does anything else.
    retryable = True


class StateElsewhere(TerraformError):
    """The recipe has a state of its own, which a copy of the recipe would not know."""


class BackendChanged(TerraformError):
    """The state is not where the recipe says that it is."""


class ProviderMissing(TerraformError):
    """A provider that the recipe needs cannot be installed."""

    retryable = True
    remedy = (
        "see whether this machine reaches the registry; without one, a mirror can be named in the CLI configuration "
        "(TF_CLI_CONFIG_FILE)"
    )


class PlanOutdated(TerraformError):
    """The state was changed after the plan was made."""

    retryable = True
    remedy = "plan again"


class DestructionRefused(TerraformError):
    """The plan would destroy or replace what it may not."""

    remedy = "see why, and allow the addresses if that is what you want"


class WorkspaceBusy(TerraformError):
    """Another task has begun to work in the same folder."""

    retryable = True
    remedy = "try again once it has ended"


class Interrupted(TerraformError):
    """The run was told to end, by a person or because the Airflow worker ends; another try goes on."""

    retryable = True


class TerraformFailed(TerraformError):
    """Anything else; Terraform's own words say what."""

    retryable = True


@dataclass(frozen=True)
class _FailurePattern:
    error: type[TerraformError]
    pattern: re.Pattern[str]


def _pattern(error: type[TerraformError], pattern: str) -> _FailurePattern:
    return _FailurePattern(error, re.compile(pattern, re.IGNORECASE))


#: The first rule that matches counts: what keeps Terraform from beginning comes before what a cloud may say.
_RULES = (
    _pattern(StateLocked, r"error acquiring the state lock"),
    _pattern(StateNotSaved, r"failed to (save|persist) state|errored\.tfstate"),
    _pattern(PlanOutdated, r"saved plan is stale|plan file .*different (state|lineage)"),
    _pattern(
        BackendChanged,
        r"backend (configuration|type) changed|backend initialization required|-migrate-state|unsetting the previous",
    ),
    _pattern(TerraformTooOld, r"unsupported (terraform|opentofu) core version"),
    _pattern(NotARecipe, r"no configuration files"),
    _pattern(RecipeMissing, r"failed to download module|module not found|unreadable module|invalid module source"),
    _pattern(
        ProviderMissing,
        r"failed to (query available provider|install provider)|required plugins are not installed"
        r"|inconsistent dependency lock file|could not connect to registry",
    ),
    _pattern(
        InvalidVariable,
        r"invalid value for (input )?variable|no value for required variable|invalid variable name"
        r"|resource precondition failed",
    ),
    _pattern(UnknownVariable, r"values? for undeclared variable"),
    _pattern(
        RecipeInvalid,
        r"problems during initiali[sz]ation|unsupported (argument|block type|attribute)|missing required argument"
        r"|reference to undeclared|module not installed|invalid (reference|expression|block definition)"
        r"|duplicate (variable|resource|output|module)|unclosed configuration block",
    ),
    _pattern(CloudQuotaExceeded, r"quota"),
    _pattern(
        Unauthenticated,
        rf"unauthenticated|{_STATUS}401\b|unauthorized|expiredtoken|invalidaccesskeyid|signaturedoesnotmatch"
        r"|no valid credential sources|token (has |is )?(expired|invalid)|(expired|invalid|missing) (iam )?token",
    ),
    _pattern(Denied, rf"permissiondenied|permission_denied|{_STATUS}403\b|accessdenied|forbidden"),
    _pattern(AlreadyThere, r"alreadyexists|already_exists|already exists"),
    _pattern(NotEnoughResources, r"not ?enough ?resources|resource_?exhausted"),
)


def explain(found: Sequence[Diagnostic], command: str) -> TerraformError:
    """The error that a failed command's diagnostics mean."""
    wrong = errors(found)
    told = "; ".join(_told(one) for one in wrong[:_TOLD]) or "it failed without a word"
    more = f"; and {len(wrong) - _TOLD} more errors" if len(wrong) > _TOLD else ""
    what = f"terraform {command}: {told}{more}"
    text = "\n".join(one.words for one in wrong)
    kind = next((rule.error for rule in _RULES if rule.pattern.search(text)), TerraformFailed)
    if kind is CloudQuotaExceeded and (names := list(dict.fromkeys(_quotas(wrong)))):
        what = f"the quota {', '.join(names)} stands against it ({what})"
    return kind(what, diagnostics=found)


def undeclared(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Warnings of values that Terraform takes no notice of."""
    return tuple(one for one in found if not one.is_error and _is_about(UnknownVariable, one))


def is_locked_out(one: Diagnostic) -> bool:
    """True if it says that another process holds the state's lock."""
    return _is_about(StateLocked, one)


def _is_about(kind: type[TerraformError], one: Diagnostic) -> bool:
    return any(rule.error is kind and rule.pattern.search(one.summary) for rule in _RULES)


def _told(one: Diagnostic) -> str:
    words = one.words if len(one.words) <= _LONGEST else f"{one.words[:_LONGEST]}…"
    return f"{words} ({one.where})" if one.where else words


def _quotas(found: Iterable[Diagnostic]) -> Iterator[str]:
    for one in found:
        yield from (name for name in _QUOTA.findall(one.words) if not re.search(r"\.(nebius|cloud)\b", name))
