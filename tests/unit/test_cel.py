"""CEL expressions that select devices: their outcomes are those of Kubernetes, and none of them is unbounded."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from moorage.cel import CelDevice, CelError, CelTooCostly, CelUnavailable, SelectorCache, compile_selector, environment
from moorage.cel.devices import version


def _vectors() -> dict[str, Any]:
    path = Path(os.environ.get("MOORAGE_VECTORS", "")) / "dra" / "cel.json"
    if not os.environ.get("MOORAGE_VECTORS") or not path.is_file():
        pytest.skip("MOORAGE_VECTORS does not name the directory with the upstream vectors")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _value(attribute: dict[str, Any]) -> Any:
    ((kind, value),) = attribute.items()
    if kind == "version":
        return version(value)
    return [version(one) for one in value] if kind == "versions" else value


def _device(given: dict[str, Any]) -> CelDevice:
    attributes = {name: _value(attribute) for name, attribute in given.get("attributes", {}).items()}
    capacity = {name: amount["value"] for name, amount in given.get("capacity", {}).items()}
    return CelDevice.of(given["driver"], attributes, capacity, bool(given.get("multi")))


def _outcomes(expression: str, devices: list[CelDevice]) -> list[bool | str] | None:
    """Returns the outcome for each device; None if the expression does not compile."""
    try:
        selector = compile_selector(expression)
    except CelTooCostly:
        return ["error"] * len(devices)
    except CelError:
        return None
    return ["error" if (found := selector.matches(device)) is None else found for device in devices]


def test_all_expressions_have_the_outcomes_of_kubernetes() -> None:
    vectors = _vectors()
    cases = vectors["upstream"] + vectors["ours"]
    assert len(cases) == 185
    differing = []
    for case in cases:
        found = _outcomes(case["expression"], [_device(given) for given in case.get("devices", vectors["devices"])])
        expected = None if case.get("compile") is False else case["results"]
        if found != expected:
            differing.append((case["expression"], found, expected))
    assert not differing


GPU = CelDevice.of(
    "gpu.example.com", {"uuid": "GPU-1", "model": "A100", "net.example.com/nic": "eth0"}, {"memory": "80Gi"}, False
)


def test_a_selector_is_evaluated_once_for_devices_that_agree_in_what_it_names() -> None:
    selector = compile_selector('device.attributes["gpu.example.com"].model == "A100"')
    devices = [
        CelDevice.of("gpu.example.com", {"uuid": f"GPU-{i}", "model": "A100" if i % 2 else "T4"}, {}, False)
        for i in range(100)
    ]
    assert sum(selector.matches(device) is True for device in devices) == 50
    assert selector.evaluated == 2


@pytest.mark.parametrize(
    ("expression", "evaluated"),
    [
        ("cel.bind(a, device.attributes['d'], a.x == 1)", 1),
        ("'x' in device.attributes['d'] && device.attributes['d'].x == 1", 1),
        ("device.attributes['d'].?x.orValue(0) == 1", 1),
        ("has(device.attributes['d'].x)", 1),
        ("'d' in device.attributes && device.driver == 'd'", 1),
        ("device.attributes['d'].exists(k, k == 'x')", 3),
        ("device.attributes.all(k, device.attributes[k].x == 1)", 3),
        ("device.attributes['d'].size() == 2", 3),
        ("cel.bind(a, device.attributes, a['d'].x == 1)", 1),
    ],
)
def test_only_names_that_an_expression_reads_tell_devices_apart(expression: str, evaluated: int) -> None:
    selector = compile_selector(expression)
    for i in range(3):
        assert selector.matches(CelDevice.of("d", {"x": 1, "uuid": str(i)}, {}, False)) is True
    assert selector.evaluated == evaluated


def test_a_domain_that_is_missing_is_empty_but_not_there() -> None:
    for expression, expected in (
        ('device.attributes["nowhere"].size() == 0', True),
        ('"nowhere" in device.attributes', False),
        ('device.attributes["nowhere"].size() == 0 && !("nowhere" in device.attributes)', True),
        ('device.attributes.exists(d, d == "nowhere") || device.attributes["nowhere"].size() == 1', False),
        ('device.attributes["nowhere"].x == 1', None),
        ('cel.bind(all, device.attributes, all["nowhere"].size() == 0)', True),
        ('[{"a": device.attributes}][0].a["nowhere"].size() == 0', None),
    ):
        assert compile_selector(expression).matches(GPU) is expected, expression
    bare = CelDevice.of("d.io", {}, {}, False)
    for expression, expected in (
        ("has(device.attributes[device.driver].x) || has(device.capacity[device.driver].x)", False),
        ("device.driver in device.attributes || device.attributes[device.driver].size() > 0", False),
        ("device.attributes[device.driver].x == 1", None),
    ):
        assert compile_selector(expression).matches(bare) is expected, expression


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ('"a1b22".find("[0-9]+") == "1" && "a1b22".findAll("([a-z])([0-9]+)") == ["a1", "b22"]', True),
        ('"a1b22".findAll("[0-9]+", 1) == ["1"] && "(x)".find("\\\\((?P<n>x)\\\\)") == "(x)"', True),
        ('"[(]".find("[[(]+") == "[("', True),
        ('cidr("10.0.0.0/8").containsIP("10.1.2.3") && !cidr("10.0.0.0/8").containsIP(ip("11.0.0.1"))', True),
        ('cidr("10.0.0.0/8").containsCIDR("10.1.0.0/16") && cidr("10.1.2.3/8").masked() == cidr("10.0.0.0/8")', True),
        ('ip("::1").family() == 6 && ip("127.0.0.1").isLoopback() && cidr("10.0.0.1/8").prefixLength() == 8', True),
        ('ip("::ffff:1.2.3.4").family() == 6', None),
        ('url("https://u@h.com:8/p?a=1&a=2").getQuery()["a"] == ["1", "2"]', True),
        ('url("https://[::1]:80/").getHostname() == "::1" && url("https://h:8/").getPort() == "8"', True),
        ('format.named("uuid").hasValue() && !format.named("no").hasValue()', True),
        ('!format.dns1123Label().validate("good-name").hasValue()', True),
        ('quantity("1").add(1) == quantity("2") && quantity("1500m").isInteger() == false', True),
        ('quantity("1500m").asInteger() == 1', None),
        ('[3, 1, 2].max() == 3 && [1.5, 2.5].min() == 1.5 && ["a"].lastIndexOf("b") == -1', True),
        ('semver("1.0.0-alpha.2").isLessThan(semver("1.0.0-alpha.10"))', True),
        ('semver("1.2.3+build") == semver("1.2.3")', True),
        ('isSemver("1.02.3") || isSemver("01.2.3")', False),
        ('isSemver("v01.02", true)', True),
    ],
)
def test_functions_that_kubernetes_adds(expression: str, found: bool | None) -> None:
    assert compile_selector(expression).matches(GPU) is found


def _doubling(levels: int) -> str:
    expression = f"v{levels}.size() > 1"
    for i in range(levels, 0, -1):
        expression = f"cel.bind(v{i}, v{i - 1} + v{i - 1} + v{i - 1} + v{i - 1}, {expression})"
    return f'cel.bind(v0, "xxxxxxxxxx", {expression})'


@pytest.mark.parametrize(
    "expression",
    [
        _doubling(12),
        _doubling(30),
        "(" * 5000 + "1" + ")" * 5000 + " == 1",
        "[" * 3000,
        '"a"' + '.replace("a", "aaaaaaaaaa")' * 9 + ".size() > 1",
        "lists.range(1000000000).size() > 0",
        "lists.range(100000).map(x, lists.range(100000)).size() > 0",
        '"%1000000000s".format(["a"]) == "a"',
        "1" + " + 1" * 2500 + " > 0",
        "true || " * 2000 + "true",
    ],
)
def test_an_expression_that_is_too_much_work_is_refused_at_once(expression: str) -> None:
    start = time.thread_time()
    with pytest.raises(CelError):
        compile_selector(expression)
    assert time.thread_time() - start < 5


def test_patterns_take_time_in_proportion_to_the_text() -> None:
    device = CelDevice.of("d", {"a": "a" * 60}, {}, False)
    start = time.thread_time()
    for expression in ('device.attributes["d"].a.find("(a+)+b") == ""', '!device.attributes["d"].a.matches("(a*)*b")'):
        assert compile_selector(expression).matches(device) is True
    assert time.thread_time() - start < 5


def test_an_error_says_what_is_wrong_and_where() -> None:
    with pytest.raises(CelError, match=r"1:7: undeclared reference to 'device.name'"):
        compile_selector("device.name == 'x'")
    with pytest.raises(CelError, match="it gives int, not a bool"):
        compile_selector("1 + 1")
    with pytest.raises(CelError, match="longer than 10240 bytes"):
        compile_selector("true" + " " * 10240)


def test_without_the_runtime_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    environment.environment.cache_clear()
    try:
        with pytest.raises(CelUnavailable, match="cel-expr-python, which has wheels for CPython"):
            compile_selector("true")
        assert SelectorCache().get("true") is None
    finally:
        environment.environment.cache_clear()


def test_the_cache_compiles_each_expression_once_and_keeps_what_does_not_compile() -> None:
    cache = SelectorCache()
    assert cache.get("true") is cache.get("true") is not None
    assert cache.get("no") is None
