"""Prints results in the formats of `-o`, and declares options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from .exit_codes import DONE
from .terminal import as_json, as_yaml, out, table

Format = Annotated[
    Literal["table", "wide", "json", "yaml", "name"],
    Parameter(name=["--output", "-o"], help="Output format."),
]
Project = Annotated[str, Parameter(name=["--project", "-p"], help="Project of names without one (default: default).")]
StateDir = Annotated[
    Path | None,
    Parameter(name="--state", help="State directory of the mesh (default: $MOORAGE_STATE, then the user's)."),
]
Watch = Annotated[bool, Parameter(name=["--watch", "-w"], negative="", help="Keep running and print changes.")]

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    title: str
    value: Callable[[Row], Any]
    wide: bool = False


def show(value: Any, output: str) -> int:
    out(as_yaml(value) if output == "yaml" else as_json(value))
    return DONE


def show_list(items: Sequence[Row], columns: Sequence[Column], output: str, name: Callable[[Row], str]) -> int:
    """Prints a list in the requested format. For an empty table it says so on stderr, as kubectl does."""
    if output in ("json", "yaml"):
        return show({"items": list(items)}, output)
    if output == "name":
        if items:
            out("\n".join(name(item) for item in items))
        return DONE
    chosen = [c for c in columns if output == "wide" or not c.wide]
    if not items:
        from .terminal import note

        note("No resources found.")
        return DONE
    out(table([c.title for c in chosen], rows_of(items, chosen)))
    return DONE


def rows_of(items: Sequence[Row], columns: Sequence[Column]) -> list[list[Any]]:
    return [[column.value(item) for column in columns] for item in items]


def field(name: str) -> Callable[[Row], Any]:
    return lambda row: row.get(name)


def clusters_of(row: Row) -> str:
    """Returns the clusters of all apps of a row, at most four by name."""
    apps: Mapping[str, Row] = row.get("apps") or {}
    found = list(dict.fromkeys(cluster for app in apps.values() for cluster in app.get("clusters", [])))
    return ",".join(found[:4]) + (f",+{len(found) - 4}" if len(found) > 4 else "")


def amounts(values: Mapping[str, Any] | None) -> str:
    """Formats quantities as `cpu 7.5, memory 30Gi`: cpu and memory first, without pods."""
    if not values:
        return ""
    first = [k for k in ("cpu", "memory") if k in values]
    rest = sorted(k for k in values if k not in first and k != "pods")
    return ", ".join(f"{k} {_readable(k, str(values[k]))}" for k in [*first, *rest])


_BYTES = re.compile(r"(\d+)(Ki|Mi)?")
_UNITS = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20}


def _readable(resource: str, text: str) -> str:
    """Rounds large amounts of bytes for reading; the other formats have the exact values."""
    found = _BYTES.fullmatch(text)
    if found is None or not resource.startswith(("memory", "ephemeral-storage", "hugepages-")):
        return text
    size = int(found[1]) * _UNITS[found[2]]
    if size < 1 << 30:
        return text if found[2] else f"{size / (1 << 20):.4g}Mi" if size >= 1 << 20 else text
    return f"{size / (1 << 30):.1f}Gi".replace(".0Gi", "Gi")


def yes_no(value: Any) -> str:
    return "yes" if value else "no"
