"""Reads the settings of the placement worker."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import NamedTuple, Self

import yaml

from .core.policy import Policy
from .core.routes import MAXIMUM_VERSION

DEFAULT_HTTP = "127.0.0.1:8778"
TOKEN, UNCHECKED = "token", "noauth2"


class PlacementSettings(NamedTuple):
    http: str
    auth: str
    policy: Policy
    cors: str
    maximum: int
    limit: int
    randomize: bool

    @classmethod
    def from_env(cls) -> Self:
        """Raises SystemExit for a setting that cannot be."""
        http = os.environ.get("MOORAGE_PLACEMENT_HTTP", DEFAULT_HTTP)
        auth = os.environ.get("MOORAGE_PLACEMENT_AUTH", TOKEN)
        if auth not in (TOKEN, UNCHECKED):
            raise SystemExit(f"MOORAGE_PLACEMENT_AUTH={auth}: it is {TOKEN} or {UNCHECKED}")
        if auth == UNCHECKED and not _is_loopback(http.rpartition(":")[0]):
            raise SystemExit(
                f"MOORAGE_PLACEMENT_AUTH={UNCHECKED} believes every caller: {http} must be a loopback address"
            )
        return cls(
            http,
            auth,
            policy_of(os.environ.get("MOORAGE_PLACEMENT_POLICY", "secure")),
            os.environ.get("MOORAGE_PLACEMENT_CORS", ""),
            _version(os.environ.get("MOORAGE_PLACEMENT_MAX", f"1.{MAXIMUM_VERSION}")),
            _limit(os.environ.get("MOORAGE_PLACEMENT_LIMIT", "100000")),
            _random(os.environ.get("MOORAGE_PLACEMENT_RANDOM", "")),
        )


def check() -> None:
    """Raises SystemExit for settings that cannot be."""
    PlacementSettings.from_env()


def _is_loopback(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _random(text: str) -> bool:
    if text.lower() not in ("", "0", "false", "no", "1", "true", "yes"):
        raise SystemExit(f"MOORAGE_PLACEMENT_RANDOM={text}: it is true or false")
    return text.lower() in ("1", "true", "yes")


def _limit(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SystemExit(f"MOORAGE_PLACEMENT_LIMIT={text}: it is a number of candidates, at least 1")
    return int(text)


def _version(text: str) -> int:
    major, _, minor = text.partition(".")
    if major != "1" or not minor.isdecimal() or int(minor) > MAXIMUM_VERSION:
        raise SystemExit(f"MOORAGE_PLACEMENT_MAX={text}: it is 1.0 to 1.{MAXIMUM_VERSION}")
    return int(minor)


def policy_of(text: str) -> Policy:
    """Returns the policy of that name, or of that file."""
    if text in ("secure", "legacy"):
        return Policy(legacy=text == "legacy")
    try:
        rules = yaml.safe_load(Path(text).read_text()) or {}
        policy = Policy({str(name): str(rule) for name, rule in rules.items()})
        policy.check()
    except OSError as error:
        raise SystemExit(
            f"MOORAGE_PLACEMENT_POLICY={text}: it is secure, legacy, or a file that can be read: {error.strerror}"
        ) from None
    except (ValueError, AttributeError, yaml.YAMLError) as error:
        raise SystemExit(
            f"MOORAGE_PLACEMENT_POLICY={text}: these are no rules: {' '.join(str(error).split())}"
        ) from None
    return policy
