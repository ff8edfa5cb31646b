"""Finds the consumers that a group's intents have, with the objects that they name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from moorage.model.desired_state import ActionAsk
from moorage.model.documents import INTENT_SPECS, Consumer, HpaIntentSpec
from moorage.podspec import find

#: Kinds of intents that have consumers.
CONSUMER_KINDS = tuple(kind for kind, spec in INTENT_SPECS.items() if issubclass(spec, HpaIntentSpec))


class NamedConsumer(NamedTuple):
    """A consumer, and the manifest of its object."""

    app: str
    manifest: dict[str, Any]
    consumer: Consumer


def named_consumers(ask: ActionAsk) -> Iterator[NamedConsumer]:
    """Yields the consumers whose objects are among the manifests."""
    for intent in ask.intents:
        if intent.get("kind") not in CONSUMER_KINDS:
            continue
        spec = msgspec.convert(intent.get("spec") or {}, HpaIntentSpec)
        for consumer in spec.consumers:
            ref = consumer.object
            manifest = find(ask.manifests.get(spec.app, []), ref.api_version, ref.kind, ref.name)
            if manifest is not None:
                yield NamedConsumer(spec.app, manifest, consumer)
