"""`moorage version` and `moorage --version`."""

from __future__ import annotations

from typing import Any

from ..exit_codes import DONE, Failure
from ..gateway_client import Client
from ..output import Format, StateDir, show
from ..terminal import out

#: Seconds until the gateway must have answered: the user wants the versions, not to wait.
_TIMEOUT_SECONDS = 1.0


def version(*, output: Format = "table", state: StateDir = None) -> int:
    """Print the versions of this command and of the gateway."""
    found = _versions(state)
    if output in ("json", "yaml"):
        return show(found, output)
    out(_text(found))
    return DONE


def version_text() -> str:
    return _text(_versions(None))


def _versions(state: StateDir) -> dict[str, Any]:
    from importlib.metadata import version as version_of

    found: dict[str, Any] = {"version": version_of("moorage")}
    try:
        client = Client.find(state)
        found["gateway"] = {"url": client.url, **client.call("GET", "/v1/version", timeout=_TIMEOUT_SECONDS)}
    except Failure as failure:
        found["gateway"] = {"problem": str(failure).partition("; ")[0].removeprefix("the gateway at ")}
    return found


def _text(found: dict[str, Any]) -> str:
    gateway = found["gateway"]
    second = (
        f"gateway {gateway['version']} at {gateway['url']}" if "url" in gateway else f"gateway: {gateway['problem']}"
    )
    return f"moorage {found['version']}\n{second}"
