"""The functions that Kubernetes adds to CEL. Values of its types are maps here: the runtime knows no others."""

from __future__ import annotations

import ipaddress
import itertools
import re
import uuid
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from moorage.parsing import parse_nanos

Opaque = dict[str, Any]
_NANO = 10**9
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
#: Elements of a list that `includes` looks through.
_LONGEST_LIST = 48

# --- quantities


def quantity(text: str) -> Opaque:
    return _of_nanos(parse_nanos(text))


def is_quantity(text: str) -> bool:
    return _is_valid(quantity, text)


def _of_nanos(nanos: int) -> Opaque:
    return {"quantity": str(nanos)}


def _nanos(value: Opaque | int) -> int:
    if isinstance(value, int):
        return value * _NANO
    return int(value["quantity"])


def sign(value: Opaque) -> int:
    nanos = _nanos(value)
    return (nanos > 0) - (nanos < 0)


def is_integer(value: Opaque) -> bool:
    nanos = _nanos(value)
    return not nanos % _NANO and _INT_MIN <= nanos // _NANO <= _INT_MAX


def as_integer(value: Opaque) -> int:
    if not is_integer(value):
        raise ValueError("the quantity is no integer")
    return _nanos(value) // _NANO


def as_approximate_float(value: Opaque) -> float:
    return _nanos(value) / _NANO


def add(value: Opaque, other: Opaque | int) -> Opaque:
    return _of_nanos(_nanos(value) + _nanos(other))


def sub(value: Opaque, other: Opaque | int) -> Opaque:
    return _of_nanos(_nanos(value) - _nanos(other))


# --- versions

_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
_NUMBER = r"(0|[1-9][0-9]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII
)


def semver(text: str, normalize: bool = False) -> Opaque:
    """Reads a version. Without the meta data of its build, so that equal versions are equal."""
    if normalize:
        text = _normalized(text)
    found = _SEMVER.fullmatch(text) if len(text) <= 256 else None
    if found is None:
        raise ValueError("this is no semantic version")
    major, minor, patch, pre = found.groups()
    return {"semver": f"{major}.{minor}.{patch}" + (f"-{pre}" if pre else "")}


def is_semver(text: str, normalize: bool = False) -> bool:
    return _is_valid(lambda given: semver(given, normalize), text)


def _normalized(text: str) -> str:
    """Removes a leading v and zeros that lead numbers, and adds the numbers that are missing."""
    core, rest = re.match(r"v?([0-9.]*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    numbers = [number.lstrip("0") or "0" if number else "" for number in core.split(".")]
    if len(numbers) < 3 and rest[:1] in ("-", "+"):
        return text
    return ".".join(numbers + ["0"] * (3 - len(numbers))) + rest


def major(value: Opaque) -> int:
    return _numbers(value)[0]


def minor(value: Opaque) -> int:
    return _numbers(value)[1]


def patch(value: Opaque) -> int:
    return _numbers(value)[2]


def _numbers(value: Opaque) -> list[int]:
    return [int(number) for number in value["semver"].partition("-")[0].split(".")]


def _version_key(value: Opaque) -> tuple[list[int], bool, list[tuple[bool, int, str]]]:
    """Orders versions: one before its release is less, and numbers in it are less than words."""
    if _SEMVER.fullmatch(value["semver"]) is None:
        raise ValueError("this is no semantic version")
    pre = value["semver"].partition("-")[2]
    words = [(not word.isdigit(), int(word) if word.isdigit() else 0, word) for word in pre.split(".")] if pre else []
    return _numbers(value), not pre, words


# --- both

_MIXED = "values of two types cannot be compared"


def compare_to(value: Opaque, other: Opaque) -> int:
    if "quantity" in value and "quantity" in other:
        first, second = _nanos(value), _nanos(other)
        return (first > second) - (first < second)
    if "semver" in value and "semver" in other:
        one, two = _version_key(value), _version_key(other)
        return (one > two) - (one < two)
    raise ValueError(_MIXED)


def is_greater_than(value: Opaque, other: Opaque) -> bool:
    return compare_to(value, other) > 0


def is_less_than(value: Opaque, other: Opaque) -> bool:
    return compare_to(value, other) < 0


# --- attributes that are one value or a list


def includes(value: Any, wanted: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    if len(values) > _LONGEST_LIST:
        raise ValueError(f"the list has more than {_LONGEST_LIST} elements")
    return any(type(one) is type(wanted) and one == wanted for one in values)


# --- lists


def is_sorted(values: Sequence[Any]) -> bool:
    return all(one <= two for one, two in itertools.pairwise(values))


def total(values: Sequence[Any]) -> Any:
    return sum(values)


def least(values: Sequence[Any]) -> Any:
    return min(_not_empty(values))


def most(values: Sequence[Any]) -> Any:
    return max(_not_empty(values))


def _not_empty(values: Sequence[Any]) -> Sequence[Any]:
    if not values:
        raise ValueError("the list is empty")
    return values


def index_of(values: Sequence[Any], wanted: Any) -> int:
    return next((i for i, value in enumerate(values) if value == wanted), -1)


def last_index_of(values: Sequence[Any], wanted: Any) -> int:
    return next((i for i in range(len(values) - 1, -1, -1) if values[i] == wanted), -1)


# --- addresses


def ip(text: str) -> Opaque:
    address = ipaddress.ip_address(text)
    if getattr(address, "ipv4_mapped", None) is not None or "%" in text:
        raise ValueError("IPv4-mapped addresses and zones are not allowed")
    return {"ip": str(address)}


def is_ip(text: str) -> bool:
    return _is_valid(ip, text)


def is_canonical(text: str) -> bool:
    return bool(ip(text)["ip"] == text)


def _address(value: Opaque) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(value["ip"])


def family(value: Opaque) -> int:
    return _address(value).version


def is_unspecified(value: Opaque) -> bool:
    return _address(value).is_unspecified


def is_loopback(value: Opaque) -> bool:
    return _address(value).is_loopback


def is_link_local_multicast(value: Opaque) -> bool:
    address = _address(value)
    local = ipaddress.ip_network("224.0.0.0/24" if address.version == 4 else "ff02::/16")
    return address in local


def is_link_local_unicast(value: Opaque) -> bool:
    return _address(value).is_link_local


def is_global_unicast(value: Opaque) -> bool:
    address = _address(value)
    broadcast = str(address) == "255.255.255.255"
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not (broadcast or special)


def cidr(text: str) -> Opaque:
    address, slash, _ = text.partition("/")
    if not slash:
        raise ValueError("this is no CIDR")
    ip(address)
    return {"cidr": ipaddress.ip_interface(text).with_prefixlen}


def is_cidr(text: str) -> bool:
    return _is_valid(cidr, text)


def _interface(value: Opaque) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    return ipaddress.ip_interface(value["cidr"])


def contains_ip(value: Opaque, other: Opaque | str) -> bool:
    return _address(ip(other) if isinstance(other, str) else other) in _interface(value).network


def contains_cidr(value: Opaque, other: Opaque | str) -> bool:
    inner = _interface(cidr(other) if isinstance(other, str) else other).network
    outer = _interface(value).network
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def ip_of_cidr(value: Opaque) -> Opaque:
    return {"ip": str(_interface(value).ip)}


def prefix_length(value: Opaque) -> int:
    return _interface(value).network.prefixlen


def masked(value: Opaque) -> Opaque:
    return {"cidr": str(_interface(value).network)}


# --- urls


def url(text: str) -> Opaque:
    found = urlsplit(text)
    if not (found.scheme or text.startswith("/")) or " " in found.netloc:
        raise ValueError("this is no URL")
    _ = found.port  # raises for a port that is no number
    return {"url": text}


def is_url(text: str) -> bool:
    return _is_valid(url, text)


def _split(value: Opaque) -> SplitResult:
    return urlsplit(value["url"])


def get_scheme(value: Opaque) -> str:
    return _split(value).scheme


def get_host(value: Opaque) -> str:
    return _split(value).netloc.rpartition("@")[2]


def get_hostname(value: Opaque) -> str:
    return _split(value).hostname or ""


def get_port(value: Opaque) -> str:
    port = _split(value).port
    return "" if port is None else str(port)


def get_escaped_path(value: Opaque) -> str:
    return quote(_split(value).path, safe="/%:@!$&'()*+,;=~-._")


def get_query(value: Opaque) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pair in _split(value).query.split("&"):
        if pair:
            name, _, text = pair.partition("=")
            found.setdefault(name, []).append(text)
    return found


# --- formats of names

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_LABEL_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"


def _pattern(pattern: str, longest: int) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: len(text) <= longest and compiled.fullmatch(text) is not None


def _is_valid(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _prefix(check: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda text: check(text[:-1] + "a" if text.endswith("-") else text)


_dns_label = _pattern(_LABEL, 63)
_dns_subdomain = _pattern(rf"{_LABEL}(?:\.{_LABEL})*", 253)
_dns1035_label = _pattern(r"[a-z](?:[-a-z0-9]*[a-z0-9])?", 63)
_label_value = _pattern(_LABEL_VALUE, 63)


def _is_qualified_name(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    return bool(name) and _label_value(name) and (not slash or _dns_subdomain(prefix))


FORMATS: dict[str, Callable[[str], bool]] = {
    "dns1123Label": _dns_label,
    "dns1123Subdomain": _dns_subdomain,
    "dns1035Label": _dns1035_label,
    "dns1123LabelPrefix": _prefix(_dns_label),
    "dns1123SubdomainPrefix": _prefix(_dns_subdomain),
    "dns1035LabelPrefix": _prefix(_dns1035_label),
    "qualifiedName": _is_qualified_name,
    "labelValue": _label_value,
    "uri": is_url,
    "uuid": lambda text: _is_valid(uuid.UUID, text) and len(text) == 36,
    "byte": lambda text: _is_valid(lambda given: b64decode(given, validate=True), text),
    "date": lambda text: _is_valid(date.fromisoformat, text),
    "datetime": lambda text: _is_valid(datetime.fromisoformat, text),
}


def named_format(name: str) -> Opaque:
    """Returns an optional format: a map that is empty if there is none."""
    return {"format": name} if name in FORMATS else {}


def validate(value: Opaque, text: str) -> Opaque:
    """Returns the optional violations of a format: a map that is empty if there are none."""
    if FORMATS[value["format"]](text):
        return {}
    return {"errors": [f"{text[:80]!r} is no {value['format']}"]}


def has_value(optional: Opaque) -> bool:
    return bool(optional)


def value_of(optional: Opaque) -> Any:
    if not optional:
        raise ValueError("optional.none() dereference")
    return optional.get("errors", optional)


# --- regular expressions


def without_groups(pattern: str) -> str:
    """Returns the pattern with groups that capture nothing, so that what is found is the whole match."""
    parts: list[str] = []
    in_class = quoted = False
    i = 0
    while i < len(pattern):
        two = pattern[i : i + 2]
        if quoted:
            quoted = two != r"\E"
            parts.append(two if not quoted else pattern[i])
            i += 1 if quoted else 2
            continue
        if pattern[i] == "\\":
            quoted = two == r"\Q"
            parts.append(two)
            i += 2
            continue
        if in_class:
            in_class = pattern[i] != "]" or pattern[i - 1] == "[" or pattern[i - 2 : i] == "[^"
        elif pattern[i] == "[":
            in_class = True
        elif pattern[i] == "(":
            named = re.match(r"\(\?P?<[^>]*>", pattern[i:])
            if named is not None or two != "(?":
                parts.append("(?:")
                i += named.end() if named is not None else 1
                continue
        parts.append(pattern[i])
        i += 1
    return "".join(parts)


def limited(found: Sequence[str], limit: int) -> list[str]:
    return list(found) if limit < 0 else list(found[:limit])


def texts(found: Iterable[Any]) -> list[str]:
    return [str(one) for one in found]
