"""Parses names of groups and clusters from the command line."""

from __future__ import annotations

from .exit_codes import USAGE, Failure

#: What may stand before a name, as `apply` and `get -o name` print it.
_TYPES = ("application", "group")


def full_name(text: str, project: str = "") -> str:
    """Expands `shop` and `application/shop` to `PROJECT/shop/v1/default`; full names are returned unchanged."""
    parts = text.split("/")
    if len(parts) in (2, 5) and parts[0] in _TYPES:
        parts = parts[1:]
    if len(parts) == 1 and parts[0]:
        parts = [project or "default", parts[0], "v1", "default"]
    if len(parts) != 4 or not all(parts):
        raise Failure(f"{text!r} is not a group name; use NAME or PROJECT/COMPOSITE-APP/VERSION/GROUP", USAGE)
    return "/".join(parts)


def cluster_parts(text: str) -> tuple[str, str]:
    provider, slash, name = text.partition("/")
    if not slash or not provider or not name or "/" in name:
        raise Failure(f"{text!r} is not a cluster name; use PROVIDER/NAME", USAGE)
    return provider, name
