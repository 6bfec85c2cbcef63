"""What Terraform can refuse or fail to do: each with its cause and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_soperator.terraform.diagnostics import Diagnostic


class TerraformError(Exception):
    """Terraform was asked and did not do it, or not all of it.

    ``what`` says what was found, ``remedy`` what to do about it, ``retryable`` whether another try may help without
    anybody doing anything, and ``diagnostics`` has Terraform's own words.
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
    """What reads a recipe's files is not installed."""

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
    """Somebody that Terraform asks does not know who asks."""

    remedy = (
        "give the Nebius connection a new token (they live for 12 hours) or a service account's key, and a backend "
        "on object storage its AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (the recipe's keys live for a day)"
    )


class Denied(TerraformError):
    """The account is known, and may not do this."""

    remedy = "give the account the role editor on the project, and what the message asks for"


class QuotaExceeded(TerraformError):
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
    """Somebody else works on the state, or has died while doing so."""

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
    """We were told to end, by somebody or because the worker ends; another try goes on."""

    retryable = True


class TerraformFailed(TerraformError):
    """Anything else; Terraform's own words say what."""

    retryable = True
