"""Parses label selectors in kubectl's syntax: `a=b,c!=d,e,!f,g in (h,i),j notin (k)`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from moorage.model.shapes import Requirement
from moorage.selectors import requirement_matches

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"[-A-Za-z0-9_.]*"
_PART = re.compile(
    rf"""\s*(?:
        (?P<absent>!\s*{_KEY})
      | (?P<key>{_KEY})\s*(?:
            (?P<sign>==|=|!=)\s*(?P<value>{_VALUE})
          | (?P<word>in|notin)\s*\((?P<set>[^()]*)\)
        )?
    )\s*(?:,|$)""",
    re.VERBOSE | re.ASCII,
)
_SIGNS = {"=": "In", "==": "In", "!=": "NotIn", "in": "In", "notin": "NotIn"}


def parse(text: str) -> list[Requirement]:
    """Parses a selector. Raises ValueError with the part that is not valid."""
    found: list[Requirement] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or match.end() == at:
            raise ValueError(f"is not a label selector: cannot parse {text[at:]!r}")
        found.append(_requirement(match))
        at = match.end()
        if at == len(text) and text.endswith(","):
            raise ValueError("is not a label selector: it ends with a comma")
    return found


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        return Requirement(key=match["absent"].lstrip("! "), operator="DoesNotExist")
    key: str = match["key"]
    if match["sign"]:
        return Requirement(key=key, operator=_SIGNS[match["sign"]], values=(match["value"],))
    if match["word"]:
        values = tuple(v.strip() for v in match["set"].split(","))
        return Requirement(key=key, operator=_SIGNS[match["word"]], values=values)
    return Requirement(key=key, operator="Exists")


def selects(requirements: Sequence[Requirement], labels: Mapping[str, str]) -> bool:
    """Returns whether labels match all requirements. Without requirements, everything matches."""
    return all(requirement_matches(requirement, labels.get(requirement.key)) for requirement in requirements)
