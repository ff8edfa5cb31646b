"""Declares to the CEL runtime what expressions about devices may name.

Expressions are checked where quantities, versions and addresses are types of their own, and run where they are maps, for the
runtime takes no others from Python. So each function is declared twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from . import functions as f
from .analysis import ATTRIBUTES, CAPACITY, DRIVER, MULTIPLE

#: The names of attributes and capacities where domains that are missing are empty. No expression can name them.
LENIENT = {ATTRIBUTES: ATTRIBUTES[:-1] + "*", CAPACITY: CAPACITY[:-1] + "*"}

_CONFIG = """
name: devices
extensions:
- name: sets
- name: lists
- name: two-var-comprehensions
- name: strings
  version: 2
- name: optional
- name: bindings
"""
_REGEX = """
name: expressions
extensions:
- name: optional
- name: regex
"""


class Overload(NamedTuple):
    """A function by the names of types. `impl` is None where another overload of the runtime serves it."""

    name: str
    parameters: Sequence[str]
    returns: str
    impl: Callable[..., Any]
    member: bool = True


_OPAQUE = ("quantity", "semver", "ip", "cidr", "url", "format")
#: What optional errors and formats are here: the runtime does not take optional values from Python.
_ERRORS, _MAYBE_FORMAT = "map(string,list(string))", "map(string,string)"


def _overloads() -> Iterable[Overload]:
    q, v, s, i, b = "quantity", "semver", "string", "int", "bool"
    yield Overload("quantity", [s], q, f.quantity, member=False)
    yield Overload("isQuantity", [s], b, f.is_quantity, member=False)
    yield Overload("sign", [q], i, f.sign, member=False)
    yield Overload("sign", [q], i, f.sign)
    yield Overload("isInteger", [q], b, f.is_integer)
    yield Overload("asInteger", [q], i, f.as_integer)
    yield Overload("asApproximateFloat", [q], "double", f.as_approximate_float)
    for other in (q, i):
        yield Overload("add", [q, other], q, f.add)
        yield Overload("sub", [q, other], q, f.sub)
    for kind in (q, v):
        yield Overload("compareTo", [kind, kind], i, f.compare_to)
        yield Overload("isGreaterThan", [kind, kind], b, f.is_greater_than)
        yield Overload("isLessThan", [kind, kind], b, f.is_less_than)
    for more in ([], [b]):
        yield Overload("semver", [s, *more], v, f.semver, member=False)
        yield Overload("isSemver", [s, *more], b, f.is_semver, member=False)
    for name, number in (("major", f.major), ("minor", f.minor), ("patch", f.patch)):
        yield Overload(name, [v], i, number)
    yield from _of_addresses()
    yield from _of_texts()


def _added() -> Iterable[Overload]:
    """Yields overloads of functions that the runtime has for other types. Those may not have opaque types."""
    for kind in ("int", "double", "string", "bool", "bytes", "duration", "timestamp"):
        values = f"list({kind})"
        yield Overload("isSorted", [values], "bool", f.is_sorted)
        yield Overload("min", [values], kind, f.least)
        yield Overload("max", [values], kind, f.most)
        yield Overload("indexOf", [values, kind], "int", f.index_of)
        yield Overload("lastIndexOf", [values, kind], "int", f.last_index_of)
    for kind in ("int", "double"):
        yield Overload("sum", [f"list({kind})"], kind, f.total)
    for optional, inner in ((_ERRORS, "list(string)"), (_MAYBE_FORMAT, "format")):
        yield Overload("hasValue", [optional], "bool", f.has_value)
        yield Overload("value", [optional], inner, f.value_of)


def _of_addresses() -> Iterable[Overload]:
    yield Overload("ip", ["string"], "ip", f.ip, member=False)
    yield Overload("isIP", ["string"], "bool", f.is_ip, member=False)
    yield Overload("ip.isCanonical", ["string"], "bool", f.is_canonical, member=False)
    yield Overload("family", ["ip"], "int", f.family)
    for name, check in (
        ("isUnspecified", f.is_unspecified),
        ("isLoopback", f.is_loopback),
        ("isLinkLocalMulticast", f.is_link_local_multicast),
        ("isLinkLocalUnicast", f.is_link_local_unicast),
        ("isGlobalUnicast", f.is_global_unicast),
    ):
        yield Overload(name, ["ip"], "bool", check)
    yield Overload("cidr", ["string"], "cidr", f.cidr, member=False)
    yield Overload("isCIDR", ["string"], "bool", f.is_cidr, member=False)
    for other in ("ip", "string"):
        yield Overload("containsIP", ["cidr", other], "bool", f.contains_ip)
    for other in ("cidr", "string"):
        yield Overload("containsCIDR", ["cidr", other], "bool", f.contains_cidr)
    yield Overload("ip", ["cidr"], "ip", f.ip_of_cidr)
    yield Overload("prefixLength", ["cidr"], "int", f.prefix_length)
    yield Overload("masked", ["cidr"], "cidr", f.masked)


def _of_texts() -> Iterable[Overload]:
    yield Overload("url", ["string"], "url", f.url, member=False)
    yield Overload("isURL", ["string"], "bool", f.is_url, member=False)
    for name, part in (
        ("getScheme", f.get_scheme),
        ("getHost", f.get_host),
        ("getHostname", f.get_hostname),
        ("getPort", f.get_port),
        ("getEscapedPath", f.get_escaped_path),
    ):
        yield Overload(name, ["url"], "string", part)
    yield Overload("getQuery", ["url"], "map(string,list(string))", f.get_query)
    for name in f.FORMATS:
        yield Overload(f"format.{name}", [], "format", _constant({"format": name}), member=False)
    yield Overload("format.named", ["string"], _MAYBE_FORMAT, f.named_format, member=False)
    yield Overload("validate", ["format", "string"], _ERRORS, f.validate)
    yield Overload("find", ["string", "string"], "string", _find)
    yield Overload("findAll", ["string", "string"], "list(string)", _find_all)
    yield Overload("findAll", ["string", "string", "int"], "list(string)", _find_some)


def _constant(value: f.Opaque) -> Callable[[], f.Opaque]:
    return lambda: value


def _find_all(text: str, pattern: str) -> list[str]:
    return _matches().find(text, f.without_groups(pattern))


def _find_some(text: str, pattern: str, limit: int) -> list[str]:
    return f.limited(_find_all(text, pattern), limit)


def _find(text: str, pattern: str) -> str:
    return next(iter(_find_all(text, pattern)), "")


class Environment:
    """An environment of the runtime, to check expressions in, and one to run them in."""

    def __init__(self) -> None:
        from cel_expr_python import cel

        self._cel = cel
        self.checking = self._environment(running=False)
        self.running = self._environment(running=True)

    def _environment(self, *, running: bool) -> Any:
        types = _Types(self._cel, opaque=not running)
        text = types.get("string")
        domains, amounts = types.get("map(string,map(string,dyn))"), types.get("map(string,map(string,quantity))")
        variables = {DRIVER: text, MULTIPLE: types.get("bool"), ATTRIBUTES: domains, CAPACITY: amounts}
        if running:
            variables |= {LENIENT[ATTRIBUTES]: domains, LENIENT[CAPACITY]: amounts}
        return self._cel.NewEnv(
            config=self._cel.NewEnvConfigFromYaml(_CONFIG),
            variables=variables,
            functions=list(self._declarations(types, [*_overloads(), *_includes(running)], running=running)),
            extensions=[
                self._cel.CelExtension("kubernetes", list(self._declarations(types, _added(), running=running)))
            ],
        )

    def _declarations(self, types: _Types, overloads: Iterable[Overload], *, running: bool) -> Iterable[Any]:
        cel = self._cel
        by_name: dict[str, dict[object, Any]] = {}
        for given in overloads:
            impl = {"impl": given.impl} if running else {}
            # The runtime sees maps and lists whatever is in them: one overload serves all that look alike there.
            kinds = [types.kind(p) for p in given.parameters] if running else list(given.parameters)
            key = given.member, tuple(kinds)
            found = by_name.setdefault(given.name, {})
            if key not in found:
                returns = types.get("dyn") if running and given.name in ("min", "max", "sum") else None
                found[key] = cel.Overload(
                    f"devices_{given.name}_{'_'.join(given.parameters)}_{given.member}",
                    return_type=returns or types.get(given.returns),
                    parameters=[types.get(kind) for kind in kinds],
                    is_member=given.member,
                    **impl,
                )
        for name, found in by_name.items():
            yield cel.FunctionDecl(name, list(found.values()))


def _includes(running: bool) -> Iterable[Overload]:
    """An attribute's type is not known when an expression is checked; when it runs it is."""
    if not running:
        yield Overload("includes", ["dyn", "dyn"], "bool", f.includes)
        return
    for value in ("bool", "int", "string", "semver", "list(dyn)"):
        for wanted in ("bool", "int", "string", "semver"):
            yield Overload("includes", [value, wanted], "bool", f.includes)


class _Types:
    def __init__(self, cel: Any, *, opaque: bool) -> None:
        self._type, self._opaque = cel.Type, opaque

    def kind(self, name: str) -> str:
        """Returns what values of a type look like when they run."""
        if name in _OPAQUE or name.startswith("map("):
            return "map"
        return "list" if name.startswith("list(") else name

    def get(self, name: str) -> Any:
        kinds = self._type
        if name in _OPAQUE:
            return kinds.AbstractType(f"kubernetes.{name}") if self._opaque else kinds.MAP
        if name.startswith("list("):
            return kinds.List(self.get(name[5:-1]))
        if name.startswith("map("):
            key, _, value = name[4:-1].partition(",")
            return kinds.Map(self.get(key), self.get(value))
        return getattr(kinds, name.upper())


class _Matches:
    """Finds matches with the runtime's own engine, which takes time in proportion to the text."""

    def __init__(self) -> None:
        from cel_expr_python import cel

        text = cel.Type.STRING
        config = cel.NewEnvConfigFromYaml(_REGEX)
        self._program = cel.NewEnv(config=config, variables={"t": text, "p": text}).compile("regex.extractAll(t, p)")

    def find(self, text: str, pattern: str) -> list[str]:
        result = self._program.eval(data={"t": text, "p": pattern}).plain_value()
        if not isinstance(result, list):
            raise ValueError("this is no regular expression")  # noqa: TRY004 - CEL sees it as its own error
        return f.texts(result)


@lru_cache(1)
def _matches() -> _Matches:
    return _Matches()


@lru_cache(1)
def environment() -> Environment:
    """Returns the environment. Raises ImportError where the runtime is not installed."""
    return Environment()
