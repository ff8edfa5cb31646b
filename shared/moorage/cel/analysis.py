"""Tells which attributes and capacities an expression names, and how much work it can be.

Devices that agree in what an expression names have the same answer, however many other attributes, like a uuid, differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from . import syntax_tree as tree
from .syntax_tree import LIST, Node

ATTRIBUTES, CAPACITY, DRIVER, MULTIPLE = (
    "device.attributes",
    "device.capacity",
    "device.driver",
    "device.allowMultipleAllocations",
)
_ROOTS = (ATTRIBUTES, CAPACITY)
#: What attributes, and maps and lists of them, have at most, in characters and elements.
_LONGEST_VALUE, _MOST_DOMAINS, _MOST_NAMES = 64, 32, 32
_ALL = "*"
_UNBOUNDED = 10**9
#: Functions whose results may be as long as the product of what they are given.
_PRODUCTS = frozenset({"replace", "join", "format", "flatten", "transformList"})
_INDEX = frozenset({"_[_]", "_[?_]", "_?._"})


class Named(NamedTuple):
    """A name that an expression reads. `*` stands for all of them."""

    root: str
    domain: str = _ALL
    name: str = _ALL


class Analysis(NamedTuple):
    """`domains`: those that the expression names, of which it may expect that they are there. `lenient`: ids of the nodes
    where a domain that is missing is an empty one. `cost`: a bound of the work, in steps."""

    names: frozenset[Named]
    variables: frozenset[str]
    domains: frozenset[str]
    lenient: Mapping[int, str]
    cost: int


class _Value(NamedTuple):
    """The bounds of a value: whether it is a root, or one domain of it; its size at most."""

    size: int
    root: str = ""
    domain: str = ""


def analyze(serialized: bytes) -> Analysis:
    found = _Analyzer()
    value = found.visit(tree.root(serialized), {})
    found.reads_all(value)
    return Analysis(
        frozenset(found.names),
        frozenset(found.variables),
        frozenset(found.domains),
        dict(found.lenient),
        found.cost,
    )


class _Analyzer:
    def __init__(self) -> None:
        self.names: set[Named] = set()
        self.variables: set[str] = set()
        self.domains: set[str] = set()
        self.lenient: dict[int, str] = {}
        self.cost = 0
        self._times = 1

    def reads_all(self, value: _Value) -> None:
        if value.root:
            self.names.add(Named(value.root, value.domain or _ALL))

    def visit(self, node: Node, known: Mapping[str, _Value], *, strict: bool = False) -> _Value:
        """Follows an expression. `strict`: of a root here only what is there counts."""
        self.cost += self._times
        match node.kind:
            case tree.CONST:
                value = tree.constant(node)
                return _Value(len(value) if isinstance(value, str) else value or 1)
            case tree.IDENT:
                return self._ident(node, known, strict)
            case tree.SELECT:
                operand, field = tree.select(node)
                return self._named(self.visit(operand, known), field)
            case tree.CALL:
                return self._call(node, known)
            case tree.LIST:
                return self._sum(tree.elements(node), known)
            case tree.STRUCT:
                return self._sum(list(tree.entries(node)), known)
            case tree.COMPREHENSION:
                return self._comprehension(node, known)
        return _Value(1)

    def _ident(self, node: Node, known: Mapping[str, _Value], strict: bool) -> _Value:
        name = tree.ident(node)
        if name in known:
            return known[name]
        self.variables.add(name)
        if name in _ROOTS:
            if not strict:
                self.lenient[node.id] = name
            return _Value(_MOST_DOMAINS, name)
        return _Value(_LONGEST_VALUE)

    def _named(self, value: _Value, name: str | None) -> _Value:
        """Returns the element with this name; None is one that is not known before."""
        if not value.root:
            return _Value(value.size)
        if name is None:
            self.reads_all(value)
            return _Value(_LONGEST_VALUE)
        if value.domain:
            self.names.add(Named(value.root, value.domain, name))
            return _Value(_LONGEST_VALUE)
        self.domains.add(name)
        return _Value(_MOST_NAMES, value.root, name)

    def _call(self, node: Node, known: Mapping[str, _Value]) -> _Value:
        target, function, args = tree.call(node)
        if function in _INDEX and target is None and len(args) == 2:
            operand = self.visit(args[0], known)
            self.visit(args[1], known)
            return self._named(operand, tree.text(args[1]))
        if function == "@in" and len(args) == 2:
            needle = self.visit(args[0], known)
            within = self.visit(args[1], known, strict=True)
            name = tree.text(args[0])
            if within.root and within.domain and name is not None:
                self.names.add(Named(within.root, within.domain, name))
            elif within.root and not within.domain and name is not None:
                self.names.add(Named(within.root, name, ""))
            else:
                self.reads_all(within)
            self.cost += self._times * (needle.size + within.size)
            return _Value(1)
        given = [self.visit(arg, known, strict=function == "size") for arg in ([target] if target else []) + args]
        for value in given:
            self.reads_all(value)
        size = sum(value.size for value in given)
        if function in _PRODUCTS:
            size = 1
            for value in given:
                size *= max(1, value.size)
        elif function == "_?_:_":
            size = max(value.size for value in given)
        elif function == "lists.range":
            size = _UNBOUNDED if (count := tree.integer(args[0])) is None else count
        if function == "format" and target is not None:
            widths = re.findall("[0-9]+", tree.text(target) or str(_UNBOUNDED))
            size = max(size, *map(int, widths)) if widths else size
        self.cost += self._times * max(1, size)
        return _Value(max(1, size))

    def _sum(self, nodes: list[Node], known: Mapping[str, _Value]) -> _Value:
        size = len(nodes)
        for inner in nodes:
            value = self.visit(inner, known)
            self.reads_all(value)
            size += value.size
        return _Value(size)

    def _comprehension(self, node: Node, known: Mapping[str, _Value]) -> _Value:
        found = tree.comprehension(node)
        over = self.visit(found.range, known, strict=True)
        init = self.visit(found.init, known)
        if found.range.kind == LIST and not tree.elements(found.range):  # cel.bind
            return self.visit(found.result, {**known, found.accu: init})
        self.reads_all(over)
        self.reads_all(init)
        count = max(1, over.size)
        inner = dict(known) | dict.fromkeys(found.variables, _Value(max(_LONGEST_VALUE, over.size)))
        inner[found.accu] = init._replace(root="", domain="")
        before, self._times = self._times, self._times * count
        self.visit(found.condition, inner)
        step = self.visit(found.step, inner)
        self.reads_all(step)
        self._times = before
        grown = _Value(init.size + count * max(1, step.size - init.size))
        result = self.visit(found.result, {**known, found.accu: grown})
        self.reads_all(result)
        return result._replace(root="", domain="")
