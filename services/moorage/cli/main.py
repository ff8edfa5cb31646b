"""The command `moorage`: the table of its commands. Each is imported only when it is called."""

from __future__ import annotations

import os
import sys

from cyclopts import App, CycloptsError

from .documents import STDIN
from .exit_codes import FAILED, USAGE, Failure

#: Section → command → (where it is, what it does).
_COMMANDS = {
    "The mesh": {
        "up": ("up.command:up", "Run a whole mesh on this machine."),
        "down": ("up.command:down", "Stop it."),
        "run": ("commands.run:run", "Run one worker, or a file with controllers of your own."),
        "check": ("commands.check:check", "Health of everything, and what to do."),
        "backup": ("commands.backup:backup", "Write everything that cannot be made again into a file."),
        "restore": ("commands.backup:restore", "Put a back-up into an empty place."),
        "version": ("commands.version:version", "Print the version."),
        "completion": ("commands.completion:completion", "What makes bash, zsh or fish complete commands and names."),
    },
    "Applications": {
        "apply": ("commands.apply:apply", "Store documents and act on them."),
        "delete": ("commands.delete:delete", "Take applications off their clusters and forget them."),
        "simulate": ("commands.apply:simulate", "Decide documents without storing or claiming anything."),
        "wait": ("commands.wait:wait", "Wait until a group is in a phase or deleted."),
        "approve": ("commands.lifecycle:approve", "Approve a group."),
        "instantiate": ("commands.lifecycle:instantiate", "Have an approved group decided and deployed."),
        "update": ("commands.lifecycle:update", "Have changed intents take effect."),
        "migrate": ("commands.lifecycle:migrate", "Have another group take a group's place."),
        "rollback": ("commands.lifecycle:rollback", "Go back to an earlier revision."),
        "stop": ("commands.lifecycle:stop", "Decide nothing new for a group."),
        "terminate": ("commands.lifecycle:terminate", "Take a group off its clusters."),
    },
    "Looking": {
        "get": ("commands.get:get", "Show objects of a kind."),
        "describe": ("commands.describe:describe", "Describe one object."),
        "why": ("commands.why:why", "Why a group is where it is, or nowhere yet."),
        "candidates": ("commands.why:candidates", "The clusters that may take each app."),
        "story": ("commands.why:story", "Every message of a group, in order."),
        "diff": ("commands.diff:diff", "How applied objects differ from the manifests."),
        "events": ("commands.events:events", "Show events, and with -f those that come."),
    },
    "Parts": {
        "controllers": ("commands.controllers:app", "Show controllers; `set` changes one."),
        "cluster": ("commands.cluster:app", "Show clusters; join, leave, cordon, drain them."),
        "agent": ("commands.agent:agent", "Run the agent of one cluster."),
        "fleet": ("commands.fleet:app", "Simulated clusters: run, apply, make them misbehave."),
        "token": ("commands.token:app", "Access tokens: create, list, revoke."),
        "bus": ("commands.bus:app", "A NATS that you run yourself: users and rights, streams."),
        "subjects": ("commands.events:subjects", "The table of subjects."),
    },
}


def build(argv: list[str]) -> App:
    app = App(
        name="moorage",
        help="Decides which clusters of a Kubernetes fleet run an application, by what the hardware there can do.\n\n"
        "Exit codes: 0 done; 1 refused, failed or different; 2 wrong usage; 3 not found; 4 conflict or wrong state; 5 not "
        "allowed; 6 not reachable; 7 out of time.",
        help_flags=["--help", "-h"],
        version_flags=["--version"],
        result_action="return_value",
    )
    # The short words are for the overview only: given to a command, they would hide its own help.
    overview = not argv or argv[0] in ("--help", "-h")
    for section, table in _COMMANDS.items():
        for name, (where, about) in table.items():
            app.command(f"moorage.cli.{where}", name=name, group=section, help=about if overview else None)
    return app


def run(argv: list[str] | None = None) -> int:
    """The exit code of one command. Every expected failure ends here, with words on stderr."""
    # A lone dash is a file's name here, which the parser would take for an option.
    argv = [STDIN if word == "-" else word for word in (sys.argv[1:] if argv is None else argv)]
    try:
        return build(argv)(argv, exit_on_error=False, print_error=False) or 0
    except CycloptsError as wrong:
        from cyclopts.exceptions import ValidationError

        cause = wrong.__cause__ if isinstance(wrong, ValidationError) else None
        sys.stderr.write(f"moorage: {cause or wrong}\nSee `moorage --help` or `moorage COMMAND --help`.\n")
        return USAGE
    except Failure as wrong:
        sys.stderr.write(f"moorage: {wrong}\n")
        return wrong.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


if __name__ == "__main__":
    sys.exit(run())
