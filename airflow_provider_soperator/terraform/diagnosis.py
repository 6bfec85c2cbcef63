"""From Terraform's own words to what they mean, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_soperator.terraform.diagnostics import Diagnostic, errors
from airflow_provider_soperator.terraform.errors import (
    AlreadyThere,
    BackendChanged,
    Denied,
    InvalidVariable,
    NotARecipe,
    NotEnoughResources,
    PlanOutdated,
    ProviderMissing,
    QuotaExceeded,
    RecipeInvalid,
    RecipeMissing,
    StateLocked,
    StateNotSaved,
    TerraformError,
    TerraformFailed,
    TerraformTooOld,
    Unauthenticated,
    UnknownVariable,
)

#: Errors that are told in the first line; the log has all of them.
_TOLD = 3
_LONGEST = 800

#: Names of quotas begin with a service's; names of its hosts do too.
_QUOTA = re.compile(r"\b(?:compute|vpc|mk8s|storage|iam|capacity|msp|registry|logging)\.[a-z0-9.-]*[a-z0-9]")

#: A number is a status only where it is called one.
_STATUS = r"\b(?:status|status ?code|http|response|error)\W{1,3}"


@dataclass(frozen=True)
class _Rule:
    error: type[TerraformError]
    pattern: re.Pattern[str]


def _rule(error: type[TerraformError], pattern: str) -> _Rule:
    return _Rule(error, re.compile(pattern, re.IGNORECASE))


#: The first rule that matches counts: what keeps Terraform from beginning comes before what a cloud may say.
_RULES = (
    _rule(StateLocked, r"error acquiring the state lock"),
    _rule(StateNotSaved, r"failed to (save|persist) state|errored\.tfstate"),
    _rule(PlanOutdated, r"saved plan is stale|plan file .*different (state|lineage)"),
    _rule(
        BackendChanged,
        r"backend (configuration|type) changed|backend initialization required|-migrate-state|unsetting the previous",
    ),
    _rule(TerraformTooOld, r"unsupported (terraform|opentofu) core version"),
    _rule(NotARecipe, r"no configuration files"),
    _rule(RecipeMissing, r"failed to download module|module not found|unreadable module|invalid module source"),
    _rule(
        ProviderMissing,
        r"failed to (query available provider|install provider)|required plugins are not installed"
        r"|inconsistent dependency lock file|could not connect to registry",
    ),
    _rule(
        InvalidVariable,
        r"invalid value for (input )?variable|no value for required variable|invalid variable name"
        r"|resource precondition failed",
    ),
    _rule(UnknownVariable, r"values? for undeclared variable"),
    _rule(
        RecipeInvalid,
        r"problems during initiali[sz]ation|unsupported (argument|block type|attribute)|missing required argument"
        r"|reference to undeclared|module not installed|invalid (reference|expression|block definition)"
        r"|duplicate (variable|resource|output|module)|unclosed configuration block",
    ),
    _rule(QuotaExceeded, r"quota"),
    _rule(
        Unauthenticated,
        rf"unauthenticated|{_STATUS}401\b|unauthorized|expiredtoken|invalidaccesskeyid|signaturedoesnotmatch"
        r"|no valid credential sources|token (has |is )?(expired|invalid)|(expired|invalid|missing) (iam )?token",
    ),
    _rule(Denied, rf"permissiondenied|permission_denied|{_STATUS}403\b|accessdenied|forbidden"),
    _rule(AlreadyThere, r"alreadyexists|already_exists|already exists"),
    _rule(NotEnoughResources, r"not ?enough ?resources|resource_?exhausted"),
)


def explain(found: Sequence[Diagnostic], command: str) -> TerraformError:
    """The error that a failed command's diagnostics mean."""
    wrong = errors(found)
    told = "; ".join(_told(one) for one in wrong[:_TOLD]) or "it failed without a word"
    more = f"; and {len(wrong) - _TOLD} more errors" if len(wrong) > _TOLD else ""
    what = f"terraform {command}: {told}{more}"
    text = "\n".join(one.words for one in wrong)
    kind = next((rule.error for rule in _RULES if rule.pattern.search(text)), TerraformFailed)
    if kind is QuotaExceeded and (names := list(dict.fromkeys(_quotas(wrong)))):
        what = f"the quota {', '.join(names)} stands against it ({what})"
    return kind(what, diagnostics=found)


def undeclared(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Warnings of values that Terraform takes no notice of."""
    return tuple(one for one in found if not one.is_error and _is_about(UnknownVariable, one))


def is_locked_out(one: Diagnostic) -> bool:
    """Whether it says that somebody else holds the state's lock."""
    return _is_about(StateLocked, one)


def _is_about(kind: type[TerraformError], one: Diagnostic) -> bool:
    return any(rule.error is kind and rule.pattern.search(one.summary) for rule in _RULES)


def _told(one: Diagnostic) -> str:
    words = one.words if len(one.words) <= _LONGEST else f"{one.words[:_LONGEST]}…"
    return f"{words} ({one.where})" if one.where else words


def _quotas(found: Iterable[Diagnostic]) -> Iterator[str]:
    for one in found:
        yield from (name for name in _QUOTA.findall(one.words) if not re.search(r"\.(nebius|cloud)\b", name))
