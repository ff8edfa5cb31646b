"""Checks single fields of documents: names, labels, and how many entries a list has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from moorage.model.names import is_name

from .violations import Report

NAME_IS = "must be 1 to 128 of letters, digits, '-', '_' and '.', with a letter or digit at both ends"
LABEL_KEY = re.compile(
    r"(?:(?=.{1,253}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def check_name(text: str, path: str, report: Report) -> None:
    if not is_name(text):
        report(path, "InvalidName", NAME_IS if text else "is required")


def check_labels(labels: dict[str, str], path: str, report: Report) -> None:
    for key, value in labels.items():
        if LABEL_KEY.fullmatch(key) is None:
            report(f"{path}.{key}", "InvalidLabel", f"{key!r} is not the name of a label")
        if LABEL_VALUE.fullmatch(value) is None:
            report(f"{path}.{key}", "InvalidLabel", f"{value!r} is not the value of a label")


def check_count(items: Sequence[Any], limit: int, path: str, report: Report) -> None:
    if len(items) > limit:
        report(path, "TooMany", f"has {len(items)} entries; at most {limit} are allowed")


def check_distinct(names: Sequence[str], path: str, noun: str, report: Report) -> None:
    """Reports every repeated name; `noun` says what bears it."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name and name in seen:
            report(f"{path}[{i}].name", "Duplicate", f"there is a second {noun} {name!r}")
        seen.add(name)
