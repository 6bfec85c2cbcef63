"""What a recipe needs of the Airflow worker and does not find there: told before Terraform runs, all at once."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_provider_soperator.soperator.clusters import AT_WORK
from airflow_provider_soperator.terraform.root_module import RootModule, texts_of

#: Programs, beside a shell's own tools, that recipes for clusters call.
_PROGRAMS = "nebius|kubectl|jq|yq|helm|flux|aws"
#: A program where a shell expects a command, at the head of a list that is joined to one, or looked for by a script.
_CALL = re.compile(
    r'(?:(?:^|[|;&(]|--|\b(?:if|then|do|while|!))[ \t]*|\[\s*"|\bcommand -v[ \t]+)'
    rf'({_PROGRAMS})(?:"\s*,|[ \t]+[^\s={{])'
    # The program of a plugin for credentials, or of a data source.
    r'|^\s*(?:command\s*=|program\s*=\s*\[)\s*"([\w.-]+)"',
    re.MULTILINE,
)
#: A script goes on without this program.
_OPTIONAL = re.compile(rf"\bcommand -v[ \t]+({_PROGRAMS})\b[^\n]*\|\|")
#: Its token is the account of a virtual machine in Nebius, for the command line tool and the provider.
_TOKEN_OF_MACHINE = Path("/mnt/cloud-metadata/token")
#: Settings of Terraform's backend s3, and variables, for storage outside AWS.
_ENDPOINTS = {"endpoint", "endpoints", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}
#: Those that give it keys in another way.
_OTHER_KEYS = {"access_key", "profile", "shared_credentials_files", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE"}


@dataclass(frozen=True)
class RecipeNeeds:
    """A recipe with the values of its variables, and the environment in which Terraform and its scripts run."""

    recipe: RootModule
    values: Mapping[str, Any]
    env: Mapping[str, str]
    #: Programs that the recipe names, and never comes to call.
    unused_programs: Collection[str] = ()

    def missing(self) -> Iterator[str]:
        """Each thing without which Terraform would fail or hang, with its remedy."""
        for name in sorted(self._programs):
            if not shutil.which(name, path=self.env.get("PATH")):
                yield (
                    f"the program {name} is not on PATH, and the recipe calls it: install it on all Airflow workers, "
                    f"or set Recipe(unused_programs=[{name!r}]) if it never comes to that with these variables"
                )
        calls_nebius, has_token = "nebius" in self._programs or self._uses_profile, self.env.get("NEBIUS_IAM_TOKEN")
        if calls_nebius and not (has_token or self._profiles or _TOKEN_OF_MACHINE.exists()):
            yield (
                "the Nebius CLI has no credentials, and would wait for a login in a browser: set nebius_conn_id or "
                "NEBIUS_IAM_TOKEN, or run `nebius profile create` as the account of the Airflow workers"
            )
        profile, is_on = self._value("o11y_profile"), str(self._value("public_o11y_enabled")).lower() != "false"
        if is_on and profile and profile not in self._profiles and "unset NEBIUS_IAM_TOKEN" in self._text:
            yield (
                f"the Nebius CLI has no profile {profile}, with which the recipe sets up Nebius' own observability "
                "whatever the task's token is; it would wait for a login in a browser: run `nebius profile create "
                f"--profile {profile}` as the account of the Airflow workers, or set "
                'extra={"public_o11y_enabled": False} in the spec'
            )
        if unset := self.recipe.unset({*self.values, *self._from_env}):
            yield (
                f"there is no value for {', '.join(unset)}: set them in the spec (its extra takes any variable), or as "
                f"TF_VAR_{unset[0]} in Recipe(env=…)"
            )
        yield from self.recipe.placeholders(self.values)
        if self._lacks_keys:
            yield (
                "there are no keys for the bucket with the state: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in "
                "Recipe(env=…) or in the environment of the Airflow workers. Those that the recipe's .envrc makes "
                "live a day: for a schedule, make an access key that lives longer"
            )

    def doubts(self) -> Iterator[str]:
        """What may be intended."""
        if self.recipe.is_without_bucket:
            yield (
                "The recipe's .envrc, which no task runs, would put the state into a bucket; without it the state is "
                "local: set Recipe(backend=…) to that bucket, above all if the cluster exists already"
            )
        if self._uses_profile and not self._profiles and not _TOKEN_OF_MACHINE.exists():
            yield (
                "The recipe's provider nebius reads a profile of the Nebius CLI, and ~/.nebius/config.yaml has none: "
                "if it is refused although there is a token, run `nebius profile create` on the Airflow workers"
            )

    @property
    def maintenance(self) -> str:
        """The mode of maintenance that takes the cluster down, wherever its value comes from; or empty."""
        said = str(self._value("maintenance") or "")
        return "" if said in AT_WORK else said

    @cached_property
    def _text(self) -> str:
        return "\n".join(texts_of(self.recipe.folder).values())

    @cached_property
    def _programs(self) -> set[str]:
        called = {known or said for known, said in _CALL.findall(self._text)}
        return called - set(_OPTIONAL.findall(self._text)) - set(self.unused_programs)

    @property
    def _uses_profile(self) -> bool:
        return any(name == "nebius" and "profile" in said for name, said in self.recipe.blocks("provider"))

    @cached_property
    def _profiles(self) -> set[str]:
        import yaml

        try:
            said = yaml.safe_load(Path(self.env.get("HOME", "~"), ".nebius/config.yaml").expanduser().read_text())
        except (OSError, yaml.YAMLError):
            return set()
        profiles = said.get("profiles") if isinstance(said, dict) else None
        return set(profiles) if isinstance(profiles, dict) else set()

    @property
    def _lacks_keys(self) -> bool:
        """True for a bucket outside AWS without keys; in AWS the machine itself may have them."""
        said, env = self.recipe.backend_settings.keys(), self.env
        if self.recipe.backend != "s3" or not (said & _ENDPOINTS or env.keys() & _ENDPOINTS):
            return False
        is_given = env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY")
        others = said & _OTHER_KEYS or env.keys() & _OTHER_KEYS
        return not (is_given or others or Path(env.get("HOME", "~"), ".aws/credentials").expanduser().exists())

    @property
    def _from_env(self) -> Mapping[str, str]:
        return {name.removeprefix("TF_VAR_"): value for name, value in self.env.items() if name.startswith("TF_VAR_")}

    def _value(self, name: str) -> Any:
        """The value that Terraform takes; None for the default."""
        return {**self._from_env, **self.recipe.own_values, **self.values}.get(name)
