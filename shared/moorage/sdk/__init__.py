"""The interface for placement and action controllers. A controller is one function, registered under a name, in any process:

    from moorage.sdk import allow, controller

    @controller("only-eu", deadline=0.2)
    async def only_eu(ask, fleet):
        eu = fleet.clusters.where(label={"region": "eu"})
        return {app.name: allow(eu) for app in ask.apps}

`moorage run only_eu.py` starts it against the running mesh. The built-in controllers use this package and the pure
libraries `moorage.model`, `parsing`, `podspec`, `selectors` and `fit`, which others may use as well, and nothing else.
"""

from moorage.bus import Settings
from moorage.candidates import Mask, pack, unpack
from moorage.fleet import BOUNDLESS, Fleet
from moorage.ledger import Placed, assign_beside_own, wanted_on
from moorage.model.candidates import Answer, AppAnswer, AppsRule, Ask, CandidateGroup, Conflict, Level, OwnClaim
from moorage.model.claims import Decision
from moorage.model.desired_state import ActionAsk, Contribution
from moorage.model.part_requests import Isolated, OneZone, PartGroup, PodContainer, RootConditions, SameSubtree
from moorage.model.reasons import Reason, Warn
from moorage.model.shapes import EXCLUSIVE, OptionalNeed, Shape, ShapedApp

from .answers import Allowed, allow, answer, deny
from .consumers import CONSUMER_KINDS, NamedConsumer, named_consumers
from .decorators import Declared, action, alongside, background, controller, declared
from .runner import CannotRun
from .runtime import changed, run, run_file

__all__ = [
    "BOUNDLESS",
    "CONSUMER_KINDS",
    "EXCLUSIVE",
    "ActionAsk",
    "Allowed",
    "Answer",
    "AppAnswer",
    "AppsRule",
    "Ask",
    "CandidateGroup",
    "CannotRun",
    "Conflict",
    "Contribution",
    "Decision",
    "Declared",
    "Fleet",
    "Isolated",
    "Level",
    "Mask",
    "NamedConsumer",
    "OneZone",
    "OptionalNeed",
    "OwnClaim",
    "PartGroup",
    "Placed",
    "PodContainer",
    "Reason",
    "RootConditions",
    "SameSubtree",
    "Settings",
    "Shape",
    "ShapedApp",
    "Warn",
    "action",
    "allow",
    "alongside",
    "answer",
    "assign_beside_own",
    "background",
    "changed",
    "controller",
    "declared",
    "deny",
    "named_consumers",
    "pack",
    "run",
    "run_file",
    "unpack",
    "wanted_on",
]
