"""Checks single fields of documents: names, labels, and how many entries a list has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from moorage.model.names import is_name
from moorage.model.shapes import EXCLUSIVE

from .diagnostics import Diagnostics

NAME_IS = "must be 1 to 128 of letters, digits, '-', '_' and '.', with a letter or digit at both ends"
LABEL_KEY = re.compile(
    r"(?:(?=.{1,253}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)

#: Resources of containers that have no domain in their names; `hugepages-` is followed by a size.
_STANDARD = ("cpu", "memory", "ephemeral-storage")
REQUESTABLE = f"{', '.join(_STANDARD)}, hugepages-SIZE, DOMAIN/NAME like nvidia.com/gpu, or a class of parts like FPGA"
NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


@lru_cache(4096)
def is_requestable(resource: str) -> bool:
    """Returns whether a container can request the resource, by the rules of Kubernetes for its name."""
    if "/" not in resource:
        return resource in _STANDARD or (
            resource.startswith("hugepages-") and LABEL_KEY.fullmatch(resource) is not None
        )
    if LABEL_KEY.fullmatch(resource) is None or resource == EXCLUSIVE:
        return False
    # The server keeps quotas of extended resources under `requests.` and the name; what is native has no such quota.
    is_native = "kubernetes.io/" in resource
    return is_native or (
        not resource.startswith("requests.") and LABEL_KEY.fullmatch(f"requests.{resource}") is not None
    )


def check_name(text: str, path: str, diagnostics: Diagnostics) -> None:
    if not is_name(text):
        diagnostics.error(path, "InvalidName", NAME_IS if text else "is required")


def check_labels(labels: dict[str, str], path: str, diagnostics: Diagnostics) -> None:
    for key, value in labels.items():
        if LABEL_KEY.fullmatch(key) is None:
            diagnostics.error(f"{path}.{key}", "InvalidLabel", f"{key!r} is not the name of a label")
        if LABEL_VALUE.fullmatch(value) is None:
            diagnostics.error(f"{path}.{key}", "InvalidLabel", f"{value!r} is not the value of a label")


def check_count(items: Sequence[Any], limit: int, path: str, diagnostics: Diagnostics) -> None:
    if len(items) > limit:
        diagnostics.error(path, "TooMany", f"has {len(items)} entries; at most {limit} are allowed")


def check_distinct(names: Sequence[str], path: str, noun: str, diagnostics: Diagnostics) -> None:
    """Reports every repeated name; `noun` names the kind of thing that has it."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name and name in seen:
            diagnostics.error(f"{path}[{i}].name", "Duplicate", f"there is a second {noun} {name!r}")
        seen.add(name)
