"""Reads the microversion that a client asks for."""

from __future__ import annotations

HEADER = "openstack-api-version"
SERVICE = "placement"


class BadVersion(Exception):
    """The header is malformed."""


class UnacceptableVersion(Exception):
    """The version is not served."""


def asked(headers: list[str], maximum: int) -> int:
    """Returns the second number of the version: the last one named for this service, 0 if there is none."""
    for item in reversed(",".join(headers).split(",")):
        service, _, version = item.strip().partition(" ")
        if service.lower() == SERVICE and version.strip():
            return _number(version.strip(), maximum)
    return 0


def _number(text: str, maximum: int) -> int:
    if text == "latest":
        return maximum
    try:
        major, minor = (int(number) for number in text.split(".", 1))
    except ValueError as error:
        raise BadVersion(f"Invalid microversion: invalid version string: {text}; {error}") from None
    if major != 1 or not 0 <= minor <= maximum:
        raise UnacceptableVersion(f"Invalid microversion: Unacceptable version header: {text}")
    return minor
