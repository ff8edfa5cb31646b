"""Claims of tests of the ledger."""

from __future__ import annotations

from moorage.model.claims import (
    Claim,
    IntentRef,
    Slot,
)

GROUPS = ["p/a/v1/default", "p/b/v1/default"]


def claim(ident: str, *slots: Slot, cluster: str = "lab/one", decision: str = "d") -> Claim:
    intent = IntentRef(kind="Application", name="a", revision=1)
    return Claim(
        id=ident, decision=decision, intent=intent, tenant="p", slots=list(slots), cluster=cluster, app="x", object="o"
    )


def pods(node_name: str, count: int = 1, cpu: int = 1000) -> Slot:
    return Slot(node=node_name, count=count, resources={"cpu": cpu, "pods": 1})
