"""The manifests in ops/agent are those that `join` applies, with least privilege."""

from __future__ import annotations

from pathlib import Path

import yaml

from moorage.agent.install_manifests import OWN_RULES, RULES, files

OPS = Path(__file__).parents[2] / "ops" / "agent"


def test_the_manifests_in_ops_are_those_that_join_generates() -> None:
    """`python -m moorage.agent.install_manifests ops/agent` writes them."""
    assert {path.name: path.read_text() for path in OPS.iterdir()} == files()


def test_roles_have_no_wildcards() -> None:
    for rule in [*RULES, *OWN_RULES]:
        assert "*" not in rule["resources"] and "*" not in rule["verbs"] and "*" not in rule["apiGroups"]
    secrets = [rule for rule in RULES if "secrets" in rule["resources"]]
    assert all("list" not in rule["verbs"] and "watch" not in rule["verbs"] for rule in secrets)
    assert not any("rbac.authorization.k8s.io" in rule["apiGroups"] for rule in RULES)


def test_credentials_stay_out_of_the_kustomization() -> None:
    kustomization = yaml.safe_load((OPS / "kustomization.yaml").read_text())
    assert "credentials.example.yaml" not in kustomization["resources"]
