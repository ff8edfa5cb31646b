"""`moorage completion`, and the completers that ask the running mesh for names when the user presses Tab. If that fails, they
suggest nothing; they never print an error into a command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ..exit_codes import DONE, Failure
from ..terminal import out

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

#: Kept short, because the user is waiting at a prompt.
_TIMEOUT_SECONDS = 2.0
_MAX_NAMES = "1000"


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print shell completion for commands, options and names of the running mesh.

    bash: `moorage completion bash > ~/.local/share/bash-completion/completions/moorage`, or, for the current shell,
    `source <(moorage completion bash)`. zsh: write it to a file `_moorage` in a directory of $fpath. fish:
    `moorage completion fish > ~/.config/fish/completions/moorage.fish`.

    Parameters
    ----------
    shell
        Shell: bash, zsh or fish.
    """
    from ..main import WITH_COMMANDS, build

    script = build([]).generate_completion(prog_name="moorage", shell=shell)
    # In `describe cluster NAME`, `cluster` is no command, although there is one of that name.
    known = 'if [[ " $all_commands " =~ " $word " '
    script = script.replace(
        known + "]]; then",
        known + f'&& ( ${{#cmd_path[@]}} -eq 0 || " {" ".join(WITH_COMMANDS)} " =~ " ${{cmd_path[*]}} " ) ]]; then',
    )
    out(script)
    return DONE


def _typed(context: CompletionContext, name: str) -> str:
    found = context.get(name)
    return "" if found is None else found.raw or ""


def _items(context: CompletionContext, *parts: str) -> list[dict[str, object]]:
    from pathlib import Path

    from ..gateway_client import Client, path

    state = _typed(context, "--state")
    client = Client.find(Path(state) if state else None)
    page = client.call("GET", path(*parts), query={"limit": _MAX_NAMES}, timeout=_TIMEOUT_SECONDS)
    found: list[dict[str, object]] = page["items"]
    return found


def _completer(names: Callable[[CompletionContext], Iterable[str]]) -> Callable[[CompletionContext], list[str]]:
    def complete(context: CompletionContext) -> list[str]:
        try:
            return list(names(context))
        except Failure:
            return []

    return complete


def _groups(context: CompletionContext) -> Iterable[str]:
    """Yields short names of the project's Applications and full names of all other groups."""
    own_project = _typed(context, "--project") or "default"
    for item in _items(context, "groups"):
        full = str(item["group"])
        project, name, version, group = full.split("/")
        yield name if (project, version, group) == (own_project, "v1", "default") else full


def _clusters(context: CompletionContext) -> Iterable[str]:
    return (str(item["id"]) for item in _items(context, "clusters"))


def _controllers(context: CompletionContext) -> Iterable[str]:
    return (str(item["name"]) for item in _items(context, "controllers"))


def _tokens(context: CompletionContext) -> Iterable[str]:
    return (str(item["name"]) for item in _items(context, "tokens"))


def _decisions(context: CompletionContext) -> Iterable[str]:
    return (str(item["id"]) for item in _items(context, "decisions"))


def _kinds(_context: CompletionContext) -> Iterable[str]:
    from ..resource_types import INTENTS, KINDS

    return (*(name for kind in KINDS for name in (kind.name, kind.aliases[0])), *INTENTS)


def _names(context: CompletionContext) -> Iterable[str]:
    """Yields names of the resource type that was typed before."""
    from ..resource_types import resolve

    found = resolve(_typed(context, "kind"))
    kind = found.name
    if kind == "intents":
        yield from _intents(context, found.intent_kind)
    elif kind == "groups":
        yield from _groups(context)
    elif kind == "applications":
        own_project = _typed(context, "--project") or "default"
        for item in _items(context, kind):
            metadata = item["metadata"]
            assert isinstance(metadata, dict)
            if metadata.get("project", "default") == own_project:
                yield str(metadata["name"])
    elif kind == "nodes":
        yield from (f"{item['cluster']}/{item['name']}" for item in _items(context, kind))
    elif kind == "parts":
        yield from (f"{item['cluster']}/{item['id']}" for item in _items(context, kind))
    elif kind in ("clusters", "decisions"):
        yield from (str(item["id"]) for item in _items(context, kind))
    elif kind == "controllers":
        yield from _controllers(context)
    elif kind == "machines":
        for item in _items(context, kind):
            assert isinstance(item["metadata"], dict)
            yield str(item["metadata"]["name"])
    elif kind == "slots":
        yield from dict.fromkeys(str(item["machine"]) for item in _items(context, kind))
    elif kind == "guests":
        yield from (f"{item['namespace']}/{item['name']}" for item in _items(context, kind))


def _intents(context: CompletionContext, kind: str) -> Iterable[str]:
    """Yields intents of the project: names of one kind, or KIND/NAME of all kinds."""
    own_project = _typed(context, "--project") or "default"
    for item in _items(context, "intents"):
        metadata = item["metadata"]
        assert isinstance(metadata, dict)
        if metadata.get("project", "default") == own_project and kind in ("", item["kind"]):
            yield str(metadata["name"]) if kind else f"{item['kind']}/{metadata['name']}"


def _document_paths(context: CompletionContext) -> Iterable[str]:
    """Yields kinds of documents, and the fields below what was typed."""
    from .explain import paths_below

    return paths_below(context.incomplete)


document_paths = _completer(_document_paths)
Group = Annotated[
    str,
    Parameter(completer=_completer(_groups), help="Name of an application, or PROJECT/COMPOSITE-APP/VERSION/GROUP."),
]
Cluster = Annotated[str, Parameter(completer=_completer(_clusters), help="Cluster, PROVIDER/NAME.")]
Controller = Annotated[str, Parameter(completer=_completer(_controllers), help="Name of the controller.")]
DecisionId = Annotated[str, Parameter(completer=_completer(_decisions), help="Id of a current or past decision.")]
TokenName = Annotated[str, Parameter(completer=_completer(_tokens), help="Name of the token.")]
KindName = Annotated[
    str,
    Parameter(
        completer=_completer(_kinds),
        help="Resource type: applications (app), groups (grp), clusters (cl), nodes (no), decisions (dec), controllers "
        "(ctl), parts, machines (mc), machinenodepools (mnp), slots, guests, resourceclasses (rcls), devicesources, "
        "devicequotas, classgrants, intents (int) or a kind of intent.",
    ),
]
ObjectName = Annotated[str, Parameter(completer=_completer(_names), help="Name of the resource.")]
