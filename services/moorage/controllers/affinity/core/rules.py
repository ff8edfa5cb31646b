"""Turns affinity intents into rules between apps. It looks at no clusters."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from moorage.model.documents import AffinityIntentSpec
from moorage.sdk import Answer, AppsRule, Ask, Fleet, answer, deny

NAME = "affinity"
KIND = "AffinityIntent"

_decoder = msgspec.json.Decoder(AffinityIntentSpec)


@lru_cache(4096)
def _rules(raw: bytes) -> tuple[AppsRule, ...]:
    """Returns a rule for each app with those named after it, so that every pair is in one rule."""
    found = []
    for rule in _decoder.decode(raw).rules:
        for mode, apps in (("with", rule.together), ("deny", rule.apart)):
            names = list(dict.fromkeys(apps))
            found += [
                AppsRule(app=app, mode="with" if mode == "with" else "deny", apps=others, mandatory=rule.mandatory)
                for index, app in enumerate(names)
                if (others := names[index + 1 :])
            ]
    return tuple(found)


def decide(ask: Ask, fleet: Fleet) -> Answer:
    """Allows every cluster for every app and adds the rules."""
    found = answer({app.name: deny() for app in ask.apps}, ask, fleet, NAME)
    for intent in ask.intents:
        if intent.kind == KIND:
            found.rules += _rules(bytes(intent.spec))
    return found
