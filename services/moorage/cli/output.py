"""Prints results in the formats of `-o`, and declares options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from .exit_codes import DONE
from .formats import FORMATS, check_format, custom_columns, sorted_by, template
from .quantities import readable
from .table import Table
from .terminal import as_json, as_yaml, out

Format = Annotated[
    Literal["table", "wide", "json", "yaml", "name"],
    Parameter(name=["--output", "-o"], help="Output format."),
]
ListFormat = Annotated[
    str,
    Parameter(
        name=["--output", "-o"],
        completer=lambda _context: FORMATS,
        validator=lambda _type, value: check_format(value),
        help="Output format: table, wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=TITLE:.path,… (as in kubectl).",
    ),
]
Project = Annotated[str, Parameter(name=["--project", "-p"], help="Project of names without one (default: default).")]
StateDir = Annotated[
    Path | None,
    Parameter(name="--state", help="State directory of the mesh (default: $MOORAGE_STATE, then the user's)."),
]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask before something is lost.")]
Watch = Annotated[bool, Parameter(name=["--watch", "-w"], negative="", help="Keep running and print changes.")]

Row = dict[str, Any]


@Parameter(name="*")
@dataclass(frozen=True)
class Listing:
    """The options of all commands that print lists."""

    output: ListFormat = "table"
    no_headers: Annotated[bool, Parameter(negative="", help="Print no headings of columns.")] = False
    sort_by: Annotated[str, Parameter(help="Sort by a field, for example .free.cpu.")] = ""


DEFAULT = Listing()


@dataclass(frozen=True)
class Column:
    title: str
    value: Callable[[Row], Any]
    wide: bool = False
    is_name: bool = False  # of a terminal's columns, it is cut last
    least: int = 0  # columns that its longest usual value takes


def show(value: Any, output: str) -> int:
    out(as_yaml(value) if output == "yaml" else as_json(value))
    return DONE


def show_one(item: Row, columns: Sequence[Column], listing: Listing, name: Callable[[Row], str]) -> int:
    """Prints a single item in the requested format."""
    if listing.output in ("json", "yaml"):
        return show(item, listing.output)
    if (render := template(listing.output)) is not None:
        return _out_rendered(render(item))
    return show_list([item], columns, listing, name)


def show_list(items: Sequence[Row], columns: Sequence[Column], listing: Listing, name: Callable[[Row], str]) -> int:
    """Prints a list in the requested format. For an empty table it says so on stderr, as kubectl does."""
    if listing.sort_by:
        items = sorted_by(items, listing.sort_by)
    if listing.output in ("json", "yaml"):
        return show({"items": list(items)}, listing.output)
    if (render := template(listing.output)) is not None:
        return _out_rendered(render({"items": list(items)}))
    if listing.output == "name":
        if items:
            out("\n".join(name(item) for item in items))
        return DONE
    rows = Rows(columns, listing)
    if not items and not rows.custom:
        from .terminal import note

        note("No resources found.")
        return DONE
    if lines := rows.lines(items):
        out("\n".join(lines))
    return DONE


def _out_rendered(text: str) -> int:
    """Prints the text of a template, with a line break only on a terminal, as kubectl does without one for programs."""
    sys.stdout.write(text + ("\n" if sys.stdout.isatty() and text and not text.endswith("\n") else ""))
    sys.stdout.flush()
    return DONE


class Rows:
    """Formats items as the rows of one table: the columns of their type, or custom ones."""

    def __init__(self, columns: Sequence[Column], listing: Listing, *, stream: bool = False) -> None:
        chosen = custom_columns(listing.output)
        self.custom = chosen is not None
        self._cells: list[Callable[[Row], Any]]
        names: list[int] = []
        least: list[int] = []
        if chosen is not None:
            titles, self._cells = [c.title for c in chosen], [c.text for c in chosen]
        else:
            shown = [c for c in columns if listing.output == "wide" or not c.wide]
            titles, self._cells = [c.title for c in shown], [c.value for c in shown]
            names = [number for number, column in enumerate(shown) if column.is_name]
            least = [column.least for column in shown] if stream else []
        self._table = Table(titles, heading=not listing.no_headers, least=least, names=names, stream=stream)

    def lines(self, items: Iterable[Row]) -> list[str]:
        return self._table.lines([[cell(item) for cell in self._cells] for item in items])


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
    return ", ".join(f"{k} {readable(k, values[k])}" for k in [*first, *rest])


def yes_no(value: Any) -> str:
    return "yes" if value else "no"
