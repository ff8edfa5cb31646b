"""Names of groups and clusters, and their encoding as tokens of NATS subjects and keys."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")
_PLAIN = re.compile(r"[A-Za-z0-9_-]*").fullmatch
_ESCAPE = re.compile(r"=([0-9A-F]{2})")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,126}[A-Za-z0-9])?", re.ASCII)


def token(name: str) -> str:
    """Encodes a name as one token (`v1.0` → `v1=2E0`), so that no name can match the subjects of another one."""
    return name if _PLAIN(name) else _escaped(name)


@lru_cache(4096)
def _escaped(name: str) -> str:
    return _UNSAFE.sub(lambda m: b"=%02X" % m[0][0], name.encode()).decode()


def untoken(part: str) -> str:
    return _unescaped(part) if "=" in part or not part.isascii() else part


@lru_cache(4096)
def _unescaped(part: str) -> str:
    raw = _ESCAPE.sub(lambda m: chr(int(m[1], 16)), part)
    return raw.encode("latin-1").decode("utf-8", "replace")


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


class GroupName(NamedTuple):
    """`PROJECT/COMPOSITE-APP/VERSION/GROUP`; an Application `shop` of project `p` is `p/shop/v1/default`."""

    project: str
    app: str
    version: str
    group: str

    @classmethod
    def parse(cls, text: str, project: str = "default") -> GroupName:
        parts = text.split("/")
        if len(parts) == 1:
            parts = [project, text, "v1", "default"]
        if len(parts) != 4 or not all(is_name(p) for p in parts):
            raise ValueError(f"{text!r} is neither NAME nor PROJECT/COMPOSITE-APP/VERSION/GROUP")
        return cls(*parts)

    def __str__(self) -> str:
        return "/".join(self)

    @property
    def tokens(self) -> str:
        """Returns the four subject tokens of this group."""
        return ".".join(token(p) for p in self)

    @classmethod
    def from_tokens(cls, tokens: str) -> GroupName:
        return cls(*(untoken(p) for p in tokens.split(".")))


def project_of(group: str) -> str:
    """Returns the project with which the name of a group begins."""
    return group.partition("/")[0]


def group_tokens(group: str) -> str:
    return ".".join(token(p) for p in group.split("/"))


def cluster_tokens(cluster: str) -> str:
    """`lab/edge.1` → `lab.edge=2E1`."""
    return ".".join(token(p) for p in cluster.split("/"))


def cluster_from_tokens(provider: str, cluster: str) -> str:
    return f"{untoken(provider)}/{untoken(cluster)}"
