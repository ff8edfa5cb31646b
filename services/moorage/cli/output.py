"""How answers are printed: the formats of `-o`, and the columns of each kind."""

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
    Parameter(name=["--output", "-o"], help="How to print: table, wide, json, yaml or name."),
]
Project = Annotated[str, Parameter(name=["--project", "-p"], help="The project of short names.")]
StateDir = Annotated[
    Path | None, Parameter(name="--state", help="The mesh's state directory; default MOORAGE_STATE, then the user's.")
]
Watch = Annotated[bool, Parameter(name=["--watch", "-w"], negative="", help="Then go on and print what changes.")]

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
    """A list in the asked form. An empty table says so on stderr, as kubectl does."""
    if output in ("json", "yaml"):
        return show({"items": list(items)}, output)
    if output == "name":
        if items:
            out("\n".join(name(item) for item in items))
        return DONE
    chosen = [c for c in columns if output == "wide" or not c.wide]
    if not items:
        from .terminal import note

        note("Nothing found.")
        return DONE
    out(table([c.title for c in chosen], rows_of(items, chosen)))
    return DONE


def rows_of(items: Sequence[Row], columns: Sequence[Column]) -> list[list[Any]]:
    return [[column.value(item) for column in columns] for item in items]


def field(name: str) -> Callable[[Row], Any]:
    return lambda row: row.get(name)


def clusters_of(row: Row) -> str:
    """The clusters an application runs on, per app only where they differ."""
    apps: Mapping[str, Row] = row.get("apps") or {}
    found = list(dict.fromkeys(cluster for app in apps.values() for cluster in app.get("clusters", [])))
    return ",".join(found[:4]) + (f",+{len(found) - 4}" if len(found) > 4 else "")


def amounts(values: Mapping[str, Any] | None) -> str:
    """`cpu 7.5, memory 30Gi`: the common resources first, pods left out."""
    if not values:
        return ""
    first = [k for k in ("cpu", "memory") if k in values]
    rest = sorted(k for k in values if k not in first and k != "pods")
    return ", ".join(f"{k} {_readable(k, str(values[k]))}" for k in [*first, *rest])


_BYTES = re.compile(r"(\d+)(Ki|Mi)?")
_UNITS = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20}


def _readable(resource: str, text: str) -> str:
    """Large amounts of bytes, which are exact in other formats, as a person reads them."""
    found = _BYTES.fullmatch(text)
    if found is None or not resource.startswith(("memory", "ephemeral-storage", "hugepages-")):
        return text
    size = int(found[1]) * _UNITS[found[2]]
    if size < 1 << 30:
        return text if found[2] else f"{size / (1 << 20):.4g}Mi" if size >= 1 << 20 else text
    return f"{size / (1 << 30):.1f}Gi".replace(".0Gi", "Gi")


def yes_no(value: Any) -> str:
    return "yes" if value else "no"
