"""The rights that the doctor asks for are those of the manifests in docs/rbac."""

from __future__ import annotations

from pathlib import Path

import yaml

from airflow_provider_soperator.cli.cloud_checks import RIGHTS, Right, rights_of_feature

MANIFESTS = Path(__file__).parents[3] / "docs" / "rbac"


def granted(path: Path) -> set[Right]:
    return {
        Right(verb, resource, group, thing["metadata"].get("namespace", "*"))
        for thing in yaml.safe_load_all(path.read_text())
        for rule in thing.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_each_feature_has_the_rights_of_its_manifest() -> None:
    manifests = {path.stem: granted(path) for path in MANIFESTS.glob("*.yaml") if path.stem != "account"}
    assert {feature: {*rights_of_feature(feature, "soperator")} for feature in RIGHTS} == manifests
