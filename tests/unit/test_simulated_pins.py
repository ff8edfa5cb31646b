"""Pods of simulated clusters that are pinned to a slot get what it says about parts of the node, as an agent gives it."""

from __future__ import annotations

import json

from moorage.model.desired_state import PinnedClaim, PinnedSlot
from moorage.podspec import parts_on
from moorage.sim.core.pod_needs import PodNeed, pinned


def need(**annotations: str) -> PodNeed:
    return PodNeed({}, None, (), (), "", 0, (0, 0), {}, gates=("moorage.dev/claim",), annotations=annotations)


def test_a_pod_is_told_the_parts_of_the_slots_on_its_node_now() -> None:
    slots = [
        PinnedSlot(node="a", count=2, parts={"a/numa-0": {"cpu": "4"}}),
        PinnedSlot(node="b", parts={"b/numa-1": {"cpu": "4"}}),
        PinnedSlot(node="c"),
    ]
    claim = PinnedClaim(claim="k", object="Deployment/web", slots=slots)
    runs = {node: json.loads(parts_on(claim, node) or "{}") for node in "abcd"}
    assert runs["a"] == {"a": [{"count": 2, "parts": {"a/numa-0": {"cpu": "4"}}}]}
    assert runs["b"] == {"b": [{"count": 1, "parts": {"b/numa-1": {"cpu": "4"}}}]}
    assert runs["c"] == runs["d"] == {}


def test_a_pinned_pod_keeps_its_annotation_where_its_node_has_no_parts_for_it() -> None:
    asked = need(**{"moorage.dev/parts": "of the template", "other": "stays"})
    assert pinned(asked, "a", "now").annotations == {"moorage.dev/parts": "now", "other": "stays"}
    assert pinned(asked, "a", "").annotations == asked.annotations
    assert asked.annotations["moorage.dev/parts"] == "of the template"
    assert pinned(asked, "a", "now").gates == ()
