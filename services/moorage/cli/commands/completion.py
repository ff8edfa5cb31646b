"""`moorage completion`, and what stands behind it: names of the running mesh, asked for when somebody presses Tab. Whatever
goes wrong there means no suggestions, and never an error in the middle of a command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ..exit_codes import DONE, Failure
from ..terminal import out

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

#: Somebody waits at a prompt.
_WITHIN = 2.0
_MOST = "1000"


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print what makes a shell complete commands, options and the names of the running mesh.

    bash: `moorage completion bash > ~/.local/share/bash-completion/completions/moorage`, or, for this shell,
    `source <(moorage completion bash)`; zsh: into a file `_moorage` of a directory in $fpath; fish:
    `moorage completion fish > ~/.config/fish/completions/moorage.fish`.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from ..main import build

    out(build([]).generate_completion(prog_name="moorage", shell=shell))
    return DONE


def _typed(context: CompletionContext, name: str) -> str:
    found = context.get(name)
    return "" if found is None else found.raw or ""


def _items(context: CompletionContext, *parts: str) -> list[dict[str, object]]:
    from pathlib import Path

    from ..gateway_client import Client, path

    state = _typed(context, "--state")
    client = Client.find(Path(state) if state else None)
    page = client.call("GET", path(*parts), query={"limit": _MOST}, timeout=_WITHIN)
    found: list[dict[str, object]] = page["items"]
    return found


def _asking(look: Callable[[CompletionContext], Iterable[str]]) -> Callable[[CompletionContext], list[str]]:
    def complete(context: CompletionContext) -> list[str]:
        try:
            return list(look(context))
        except Failure:
            return []

    return complete


def _groups(context: CompletionContext) -> Iterable[str]:
    """Short names of Applications of the project, full names of all others."""
    own = _typed(context, "--project") or "default"
    for item in _items(context, "groups"):
        full = str(item["group"])
        project, name, version, group = full.split("/")
        yield name if (project, version, group) == (own, "v1", "default") else full


def _clusters(context: CompletionContext) -> Iterable[str]:
    return (str(item["id"]) for item in _items(context, "clusters"))


def _controllers(context: CompletionContext) -> Iterable[str]:
    return (str(item["name"]) for item in _items(context, "controllers"))


def _tokens(context: CompletionContext) -> Iterable[str]:
    return (str(item["name"]) for item in _items(context, "tokens"))


def _kinds(_context: CompletionContext) -> Iterable[str]:
    from ..resource_types import KINDS

    return (kind.name for kind in KINDS)


def _names(context: CompletionContext) -> Iterable[str]:
    """Of objects of the kind that was typed before."""
    from ..resource_types import resolve

    kind = resolve(_typed(context, "kind")).name
    if kind == "groups":
        yield from _groups(context)
    elif kind == "applications":
        own = _typed(context, "--project") or "default"
        for item in _items(context, kind):
            metadata = item["metadata"]
            assert isinstance(metadata, dict)
            if metadata.get("project", "default") == own:
                yield str(metadata["name"])
    elif kind == "nodes":
        yield from (f"{item['cluster']}/{item['name']}" for item in _items(context, kind))
    elif kind in ("clusters", "decisions"):
        yield from (str(item["id"]) for item in _items(context, kind))
    elif kind == "controllers":
        yield from _controllers(context)


Group = Annotated[str, Parameter(completer=_asking(_groups))]
Cluster = Annotated[str, Parameter(completer=_asking(_clusters))]
Controller = Annotated[str, Parameter(completer=_asking(_controllers))]
TokenName = Annotated[str, Parameter(completer=_asking(_tokens))]
KindName = Annotated[str, Parameter(completer=_asking(_kinds))]
ObjectName = Annotated[str, Parameter(completer=_asking(_names))]
