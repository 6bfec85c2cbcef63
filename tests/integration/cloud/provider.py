"""A Terraform provider with the types of resources that the published recipe has; they exist only in the state.

What forces a replacement is as in Nebius' provider and Helm's: another parent, or, of a release, another name. A
creation that fails (STUB_FAIL) leaves a tainted resource, as one does whose operation has failed in the cloud.
"""

from __future__ import annotations

import os
import stat
import sys
import uuid
from pathlib import Path
from typing import Any

from tf.iface import Config, DataSource, Resource
from tf.runner import run_provider
from tf.schema import Attribute, Schema
from tf.types import List, Map, Number, String

#: Where Terraform looks for the provider "nebius/nebius" in a mirror.
PLACE = "registry.terraform.io/nebius/nebius/0.5.196/linux_amd64"
TYPES = ("nebius_compute_v1_filesystem", "nebius_mk8s_v1_cluster", "nebius_mk8s_v1_node_group", "helm_release")


def _note(line: str) -> None:
    if path := os.environ.get("STUB_LEDGER"):
        with open(path, "a") as file:
            file.write(line + "\n")


class _Kept(Resource):
    """A resource that is in the state, and nowhere else."""

    type_name: str

    def __init__(self, provider: Any) -> None:
        """It has nothing to ask its provider for."""

    @classmethod
    def get_name(cls) -> str:
        return cls.type_name

    @classmethod
    def get_schema(cls) -> Schema:
        return Schema(
            attributes=[
                Attribute("id", String(), computed=True),
                Attribute("name", String(), required=True, requires_replace=cls.type_name == "helm_release"),
                Attribute("parent_id", String(), required=True, requires_replace=True),
                Attribute("autoscaling", Map(Number()), optional=True),
                Attribute("values", List(String()), optional=True),
            ]
        )

    def create(self, ctx: Any, planned: dict[str, Any]) -> dict[str, Any]:
        if os.environ.get("STUB_FAIL") == planned["name"]:
            ctx.diagnostics.add_error(os.environ.get("STUB_WORDS", "it failed"), "")
        else:
            _note(f"create {planned['name']}")
        return {**planned, "id": uuid.uuid4().hex}

    def read(self, ctx: Any, current: dict[str, Any]) -> dict[str, Any]:
        return current

    def update(self, ctx: Any, current: dict[str, Any], planned: dict[str, Any]) -> dict[str, Any]:
        _note(f"update {planned['name']}")
        return planned

    def delete(self, ctx: Any, current: dict[str, Any]) -> None:
        _note(f"destroy {current['name']}")


class Cloud:
    """The provider."""

    def get_model_prefix(self) -> str:
        return ""

    def full_name(self) -> str:
        return "registry.terraform.io/nebius/nebius"

    def get_provider_schema(self, diags: Any) -> Schema:
        return Schema(attributes=[])

    def validate_config(self, diags: Any, config: Config) -> None:
        """There is nothing to configure."""

    def configure_provider(self, diags: Any, config: Config) -> None:
        """There is nothing to configure."""

    def get_data_sources(self) -> list[type[DataSource]]:
        return []

    def get_resources(self) -> list[type[Resource]]:
        return [type(name, (_Kept,), {"type_name": name}) for name in TYPES]

    def get_functions(self) -> list[Any]:
        return []

    def new_resource(self, kind: Any) -> Any:
        return kind(self)


def install(folder: Path) -> Path:
    """Put the provider into a mirror in a folder; returns the configuration file for Terraform."""
    place = folder / "mirror" / PLACE
    place.mkdir(parents=True)
    binary = place / "terraform-provider-nebius_v0.5.196"
    root = Path(__file__).parents[3]
    lines = (f"#!{sys.executable}", "import sys", f"sys.path.insert(0, {str(root)!r})")
    main = ("from tests.integration.cloud.provider import main", "main()", "")
    binary.write_text("\n".join((*lines, *main)))
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    settings = folder / "terraform.rc"
    mirror = f'filesystem_mirror {{\n    path = "{folder / "mirror"}"\n  }}'
    settings.write_text(f"provider_installation {{\n  {mirror}\n}}\n")
    return settings


def main() -> None:
    run_provider(Cloud())  # type: ignore[arg-type]
