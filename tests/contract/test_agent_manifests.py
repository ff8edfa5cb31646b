"""The plain manifests are what joining makes, and their rights are the least."""

from __future__ import annotations

from pathlib import Path

import yaml

from moorage.agent.install_manifests import OWN_RULES, RULES, files

OPS = Path(__file__).parents[2] / "ops" / "agent"


def test_the_plain_manifests_are_what_joining_makes() -> None:
    """`python -m moorage.agent.install_manifests ops/agent` writes them."""
    assert {path.name: path.read_text() for path in OPS.iterdir()} == files()


def test_rights_are_named_one_by_one() -> None:
    for rule in [*RULES, *OWN_RULES]:
        assert "*" not in rule["resources"] and "*" not in rule["verbs"] and "*" not in rule["apiGroups"]
    secrets = [rule for rule in RULES if "secrets" in rule["resources"]]
    assert all("list" not in rule["verbs"] and "watch" not in rule["verbs"] for rule in secrets)
    assert not any("rbac.authorization.k8s.io" in rule["apiGroups"] for rule in RULES)


def test_credentials_stay_out_of_the_kustomization() -> None:
    kustomization = yaml.safe_load((OPS / "kustomization.yaml").read_text())
    assert "credentials.example.yaml" not in kustomization["resources"]
