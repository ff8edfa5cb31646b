"""The second form of candidates: not where an app may run, but with which others. It knows no clusters at all."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from moorage.fleet import Fleet
from moorage.model.candidates import Answer, AppsRule, Ask
from moorage.model.documents import AffinityIntentSpec
from moorage.sdk import deny
from moorage.sdk.answers import answer

NAME = "affinity"
KIND = "AffinityIntent"

_decoder = msgspec.json.Decoder(AffinityIntentSpec)


@lru_cache(4096)
def _rules(raw: bytes) -> tuple[AppsRule, ...]:
    """Every pair once, told of the app that was named first."""
    found = []
    for rule in _decoder.decode(raw).rules:
        for mode, apps in (("with", rule.together), ("deny", rule.apart)):
            names = list(dict.fromkeys(apps))
            found += [
                AppsRule(app=app, mode="with" if mode == "with" else "deny", apps=rest, mandatory=rule.mandatory)
                for at, app in enumerate(names)
                if (rest := names[at + 1 :])
            ]
    return tuple(found)


def decide(ask: Ask, fleet: Fleet) -> Answer:
    """No cluster is objected to; the rules say the rest."""
    whole = answer({app.name: deny() for app in ask.apps}, ask, fleet, NAME)
    for intent in ask.intents:
        if intent.kind == KIND:
            whole.rules += _rules(bytes(intent.spec))
    return whole
