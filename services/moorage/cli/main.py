"""The command `moorage` and the table of its commands. A command's module is imported only when the command is called."""

from __future__ import annotations

import os
import sys

from cyclopts import App, CycloptsError, Parameter

from .exit_codes import FAILED, USAGE, Failure
from .terminal import STDIN

#: Help group → command → (module:function, summary for the overview).
_COMMANDS = {
    "Inspect": {
        "get": ("commands.get:get", "List resources of one type, or show one of them."),
        "describe": ("commands.describe:describe", "Show the details of one resource."),
        "why": ("commands.why:why", "Explain the placement of a group."),
        "candidates": ("commands.why:candidates", "List the clusters that qualify for each app."),
        "placement": ("commands.placement:app", "Query the Placement interface."),
        "replay": ("commands.replay:replay", "Decide again from the record of a decision, and compare."),
        "story": ("commands.why:story", "Show all messages about a group in order."),
        "diff": ("commands.diff:diff", "Compare documents or applied objects with what was given."),
        "explain": ("commands.explain:explain", "Describe the fields of documents."),
        "events": ("commands.events:events", "Show events."),
        "subjects": ("commands.events:subjects", "List all NATS subjects."),
        "logs": ("commands.logs:logs", "Show the logs of the workers on this machine."),
        "check": ("commands.check:check", "Check the health of the mesh."),
        "version": ("commands.version:version", "Print the versions of this command and of the gateway."),
    },
    "Manage": {
        "apply": ("commands.apply:apply", "Apply documents."),
        "delete": ("commands.delete:delete", "Delete resources."),
        "simulate": ("commands.apply:simulate", "Place documents without storing or claiming anything."),
        "wait": ("commands.wait:wait", "Wait until a group reaches a phase or is deleted."),
        "approve": ("commands.lifecycle:approve", "Approve a group."),
        "instantiate": ("commands.lifecycle:instantiate", "Place and deploy an approved group."),
        "update": ("commands.lifecycle:update", "Apply changed intents to an instantiated group."),
        "migrate": ("commands.lifecycle:migrate", "Replace a group by another one."),
        "rollback": ("commands.lifecycle:rollback", "Return a group to an earlier revision."),
        "stop": ("commands.lifecycle:stop", "Pause new decisions for a group."),
        "terminate": ("commands.lifecycle:terminate", "Remove a group from its clusters."),
        "cluster": ("commands.cluster:app", "Show, join, remove, cordon and drain clusters."),
        "controllers": ("commands.controllers:app", "Show and configure controllers."),
        "devices": ("commands.devices:app", "Show, set and compare algorithms that choose devices."),
        "fleet": ("commands.fleet:app", "Run and change simulated clusters."),
        "token": ("commands.token:app", "Create, list and revoke access tokens."),
    },
    "Run": {
        "up": ("up.command:up", "Run a mesh on this machine."),
        "down": ("up.command:down", "Stop the mesh on this machine."),
        "run": ("commands.run:run", "Run one worker, or a file with your own controllers."),
        "agent": ("commands.agent:agent", "Run the agent of one cluster."),
        "machines": ("commands.machines:machines", "Hold the slots of the Machines of one cluster."),
        "node": ("commands.node:app", "Run the agent of a node, and show what it gives to containers."),
        "backup": ("commands.backup:backup", "Back up a mesh to a file."),
        "restore": ("commands.backup:restore", "Restore a backup."),
        "bus": ("commands.bus:app", "Configure an external NATS: users, permissions, streams."),
        "completion": ("commands.completion:completion", "Print shell completion for bash, zsh or fish."),
    },
}


#: Commands that have commands of their own.
WITH_COMMANDS = [
    name for commands in _COMMANDS.values() for name, (target, _) in commands.items() if target.endswith(":app")
]
_HELP_FLAGS = {"--help", "-h"}


def build(argv: list[str]) -> App:
    app = App(
        name="moorage",
        help="Place applications on the clusters of a Kubernetes fleet by their hardware capabilities.\n\n"
        "Exit codes: 0 success; 1 refused, failed, or differences found; 2 usage error; 3 not found; 4 conflict or wrong "
        "state; 5 not allowed; 6 unreachable; 7 timed out.",
        help_flags=_HELP_FLAGS,
        version=_version,
        version_flags=["--version"],
        version_format="plaintext",
        result_action="return_value",
        default_parameter=Parameter(show_default=_shown_default),
    )
    # The summaries are for the overview only: set on a command, they would replace its own help.
    overview = not argv or argv[0] in _HELP_FLAGS
    for group, commands in _COMMANDS.items():
        for name, (target, summary) in commands.items():
            app.command(f"moorage.cli.{target}", name=name, group=group, help=summary if overview else None)
    for flag in (*app.help_flags, *app.version_flags):
        app[flag].show = False  # they would need a help group of their own
    return app


def _shown_default(value: object) -> str | None:
    """Returns the default that help shows. Most options without a value are off, or say in words what holds."""
    return str(value) if value else None


def _version() -> str:
    from .commands.version import version_text

    return version_text()


def run(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code. Expected failures are printed on stderr here."""
    # The parser would take a lone dash for an option; here it stands for stdin or stdout.
    argv = [STDIN if word == "-" else word for word in (sys.argv[1:] if argv is None else argv)]
    try:
        code = build(argv)(argv, exit_on_error=False, print_error=False) or 0
        if not argv or not _HELP_FLAGS.isdisjoint(argv[: argv.index("--") if "--" in argv else None]):
            from .examples import examples_text

            sys.stdout.write(examples_text(argv) + "\n")
        return code
    except CycloptsError as wrong:
        from cyclopts.exceptions import ValidationError

        cause = wrong.__cause__ if isinstance(wrong, ValidationError) else None
        text = cause or _unknown_command(argv) or wrong
        sys.stderr.write(f"moorage: {text}\nSee `moorage --help` or `moorage COMMAND --help`.\n")
        return USAGE
    except Failure as wrong:
        from .suggestions import for_failure

        sys.stderr.write(f"moorage: {wrong}{for_failure(wrong)}\n")
        return wrong.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _unknown_command(argv: list[str]) -> str:
    """Says that a command such as `cluster` has no command of the name that follows. "" if it has, or has no commands."""
    from .suggestions import did_you_mean

    if len(argv) < 2 or argv[0].startswith("-") or argv[1].startswith("-"):
        return ""
    app = build(argv)
    known = [name for name in app[argv[0]] if not name.startswith("-")] if argv[0] in app else []
    if not known or argv[1] in known:
        return ""
    return f"unknown command {argv[1]!r} of `moorage {argv[0]}`" + (
        did_you_mean(argv[1], known) or f"; known are {', '.join(known)}"
    )


if __name__ == "__main__":
    sys.exit(run())
