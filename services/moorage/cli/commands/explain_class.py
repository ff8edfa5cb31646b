"""`moorage explain class`: which devices a resource class selects, and which one comes nearest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..documents import read_all
from ..exit_codes import DONE, USAGE, Failure
from ..gateway_client import Client
from ..output import show
from ..table import table
from ..terminal import counted, out


def explain_named(name: str, filename: str, cluster: str, output: str, state: Path | None) -> int:
    """Explains a class by its name, or those of a file."""
    if name and filename:
        raise Failure("give either a name or -f FILE", USAGE)
    client = Client.find(state)
    of_cluster = {"cluster": cluster} if cluster else {}
    if name:
        return explain_class(client, {"class": name, **of_cluster}, output)
    for document in read_all([filename]):
        explain_class(client, {"document": document.body, **of_cluster}, output)
    return DONE


def explain_class(client: Client, body: dict[str, Any], output: str) -> int:
    found = client.call("POST", "/v1/resource-classes/explain", body=body)
    if output in ("json", "yaml"):
        return show(found, output)
    if output == "name":
        out(f"resourceclass/{found['name']}")
        return DONE
    out(
        "\n".join(
            [f"class {found['name']}" + (f" on {found['cluster']}" if found["cluster"] else ""), *class_lines(found)]
        )
    )
    return DONE


def class_lines(found: dict[str, Any]) -> list[str]:
    """Returns the text of an explanation."""
    lines = []
    for number, term in enumerate(found["terms"]):
        title = f"term {number}" if len(found["terms"]) > 1 else "requirement"
        rows = [["  all devices", found["devices"], found["devices"]]]
        rows += [
            [f"  {one['key']} {one['operator']} {', '.join(one['values'])}".rstrip(), one["matching"], one["remaining"]]
            for one in term["requirements"]
        ]
        lines.append(table([f"  {title.upper()}", "MEET IT", "REMAIN"], rows))
        if (nearest := term.get("nearest")) is not None:
            values = ", ".join(
                f"{key} is {_text(nearest.get('properties', {})[key])}"
                if key in nearest.get("properties", {})
                else f"it has no {key}"
                for key in nearest["fails"]
            )
            lines.append(f"  nearest: {nearest['cluster']}/{nearest['part']}: {values}")
    lines.append(
        f"  selected {counted(found['selected'], 'device')}, {found['healthy']} healthy; allocatable {found['allocatable']}, "
        f"requested {found['requested']}, free {found['free']}"
    )
    if found["clusters"]:
        rows = [
            [f"  {name}", one["allocatable"], one["requested"], one["free"]]
            for name, one in sorted(found["clusters"].items())
        ]
        lines.append(table(["  CLUSTER", "ALLOCATABLE", "REQUESTED", "FREE"], rows))
    for code, count in found["diagnostics"].items():
        lines.append(f"  {code}: {counted(count, 'comparison')} cannot hold")
    lines += [f"  warning {one['code']}: {one['message']}" for one in found["warnings"]]
    return lines


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return str(next(iter(value.values()), ""))
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
