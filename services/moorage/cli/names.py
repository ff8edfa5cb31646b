"""Names of groups and clusters as people type them."""

from __future__ import annotations

from .exit_codes import USAGE, Failure


def full_name(text: str, project: str = "") -> str:
    """`shop` → `PROJECT/shop/v1/default`; a full name stays."""
    parts = text.split("/")
    if len(parts) == 1 and text:
        parts = [project or "default", text, "v1", "default"]
    if len(parts) != 4 or not all(parts):
        raise Failure(f"{text!r} is neither NAME nor PROJECT/COMPOSITE-APP/VERSION/GROUP", USAGE)
    return "/".join(parts)


def cluster_parts(text: str) -> tuple[str, str]:
    provider, slash, name = text.partition("/")
    if not slash or not provider or not name or "/" in name:
        raise Failure(f"{text!r} is not PROVIDER/NAME of a cluster", USAGE)
    return provider, name
