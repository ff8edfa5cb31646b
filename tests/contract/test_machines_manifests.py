"""The manifests in ops/machines are those that `join --machines` applies, with least privilege, and hooks that concern no other Pod."""

from __future__ import annotations

from pathlib import Path

from moorage.machines.hook_configurations import mutating, validating
from moorage.machines.install_manifests import OWN_RULES, RULES, files

OPS = Path(__file__).parents[2] / "ops" / "machines"


def test_the_manifests_in_ops_are_those_that_join_generates() -> None:
    """`python -m moorage.machines.install_manifests ops/machines` writes them."""
    assert {path.name: path.read_text() for path in OPS.iterdir()} == files()


def test_roles_have_no_wildcards_and_read_no_secrets_but_one() -> None:
    for rule in [*RULES, *OWN_RULES]:
        assert "*" not in rule["resources"] and "*" not in rule["verbs"] and "*" not in rule["apiGroups"]
    assert not any("secrets" in rule["resources"] for rule in RULES)
    (secret,) = [rule for rule in OWN_RULES if "secrets" in rule["resources"]]
    assert secret["resourceNames"] == ["moorage-machines-tls"]
    assert set(secret["verbs"]) == {"get", "update"}
    # Nodes are patched, Pods of others never deleted: they are evicted.
    (nodes,) = [rule for rule in RULES if "nodes" in rule["resources"]]
    assert set(nodes["verbs"]) == {"get", "list", "watch", "patch"}


def test_hooks_fail_closed_for_guests_and_are_not_asked_about_others() -> None:
    for configuration in (mutating(), validating()):
        for hook in configuration["webhooks"]:
            assert hook["failurePolicy"] == "Fail" and hook["sideEffects"] == "None"
            assert 2 <= hook["timeoutSeconds"] <= 5
            resources = {name for rule in hook["rules"] for name in rule["resources"]}
            assert resources <= {"pods", "pods/resize"} or resources == {"machines"}
            if "pods" in resources:
                assert hook["matchConditions"]
                (own,) = [
                    e
                    for e in hook["namespaceSelector"]["matchExpressions"]
                    if e["key"] == "kubernetes.io/metadata.name"
                ]
                assert {"kube-system", "moorage-system"} <= set(own["values"])
