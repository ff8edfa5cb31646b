"""What a controller of one's own imports. One async function, registered under a name, in any process:

    from moorage.sdk import allow, controller

    @controller("only-eu", deadline=0.2)
    async def only_eu(ask, fleet):
        eu = fleet.clusters.where(label={"region": "eu"})
        return {app.name: allow(eu) for app in ask.apps}

`moorage run only_eu.py` starts it against the running mesh. The built-in controllers use nothing else.
"""

from moorage.bus import Settings
from moorage.model.candidates import Answer, Ask
from moorage.model.desired import ActionAsk, Contribution
from moorage.model.reasons import Reason

from .answers import Allowed, allow, deny
from .decorators import Declared, action, alongside, controller, declared
from .runtime import CannotRun, changed, run, run_file

__all__ = [
    "ActionAsk",
    "Allowed",
    "Answer",
    "Ask",
    "CannotRun",
    "Contribution",
    "Declared",
    "Reason",
    "Settings",
    "action",
    "allow",
    "alongside",
    "changed",
    "controller",
    "declared",
    "deny",
    "run",
    "run_file",
]
