"""The formats of `-o` with an argument, and `--sort-by`: what kubectl's documentation shows gives what kubectl gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cli.exit_codes import Failure
from moorage.cli.formats import custom_columns, sorted_by
from moorage.cli.jsonpath import JsonPathError, parse_template
from moorage.cli.main import run

#: The object of https://kubernetes.io/docs/reference/kubectl/jsonpath/, and what its table of examples gives.
KUBECTL = json.loads("""
{"kind": "List", "items": [
    {"kind": "None", "metadata": {"name": "127.0.0.1", "labels": {"kubernetes.io/hostname": "127.0.0.1"}},
     "status": {"capacity": {"cpu": "4"}, "addresses": [{"type": "LegacyHostIP", "address": "127.0.0.1"}]}},
    {"kind": "None", "metadata": {"name": "127.0.0.2"},
     "status": {"capacity": {"cpu": "8"}, "addresses": [
        {"type": "LegacyHostIP", "address": "127.0.0.2"}, {"type": "another", "address": "127.0.0.3"}]}}],
 "users": [{"name": "myself", "user": {}},
           {"name": "e2e", "user": {"username": "admin", "password": "secret"}}]}
""")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("kind is {.kind}", "kind is List"),
        ("{.kind}", "List"),
        ("{['kind']}", "List"),
        ("{@.kind}", "List"),
        ("{$.kind}", "List"),
        (".kind", "List"),
        ("{..name}", "127.0.0.1 127.0.0.2 myself e2e"),
        ("{.items[*].metadata.name}", "127.0.0.1 127.0.0.2"),
        ("{.users[0].name}", "myself"),
        ("{.users[-1].name}", "e2e"),
        ("{.users[-1:].name}", "e2e"),
        ("{.users[0:1].name}", "myself"),
        ("{.users[::2].name}", "myself"),
        ("{.users[1,0].name}", "e2e myself"),
        ("{.items[*]['metadata.name', 'status.capacity']}", '127.0.0.1 {"cpu":"4"} 127.0.0.2 {"cpu":"8"}'),
        ('{.users[?(@.name=="e2e")].user.password}', "secret"),
        ("{.users[?(@.user.username)].name}", "e2e"),
        ('{.users[?(@.name!="e2e")].name}', "myself"),
        ("{range .items[*]}[{.metadata.name}, {.status.capacity}] {end}",
         '[127.0.0.1, {"cpu":"4"}] [127.0.0.2, {"cpu":"8"}] '),
        ('{range .items[*]}{.metadata.name}{"\\t"}{end}', "127.0.0.1\t127.0.0.2\t"),
        (r"{.items[*].metadata.labels.kubernetes\.io/hostname}", "127.0.0.1"),
        (r"{.items[*].metadata.labels['kubernetes\.io/hostname']}", "127.0.0.1"),
        ("{.items[0].metadata.labels['kubernetes.io/hostname']}", "127.0.0.1"),
        ("{range .items[*]}{range .status.addresses[*]}{.address} {end}; {end}", "127.0.0.1 ; 127.0.0.2 127.0.0.3 ; "),
        ("{.items[0].status.addresses.*.type}", "LegacyHostIP"),
        ('{"a \\"quoted\\" text"} {\'and\'}', 'a "quoted" text and'),
        ("{.nope} {.users[9].name}{.users.name}", " "),
        ("no path", "no path"),
    ],
)  # fmt: skip
def test_kubectls_examples(template: str, text: str) -> None:
    assert parse_template(template).render(KUBECTL) == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{.items[}", "a number, a quoted key"),
        ("{.a.length()}", r"functions such as length\(\) are not supported at character 11"),
        ("{end}", "end} without"),
        ("{range .items[*]}{.id}", "end} is missing"),
        ("{.items[?(@.a && @.b)]}", "&& and || are not supported"),
        ("{.items[?(.a == )]}", "a value or a path"),
        ("{items}", "a path, a quoted text"),
        ("{", "'}' is missing"),
        ("{.a", "'}' is missing"),
        ("{.items[::0]}", "step must not be 0"),
        ("{..}", "the name of a field"),
    ],
)
def test_what_is_not_understood_is_said_with_its_place(template: str, message: str) -> None:
    with pytest.raises(JsonPathError, match=message):
        parse_template(template)


@given(st.text(alphabet="{}[]().*'\"@$?=<>!,:-0a \\", max_size=24))
def test_any_text_is_a_template_or_refused(text: str) -> None:
    try:
        template = parse_template(text)
    except JsonPathError:
        return
    assert isinstance(template.render({"a": [{"a": 1}, "0"], "0": {"a": None}}), str)


CLUSTERS: list[dict[str, Any]] = [
    {"id": "lab/edge-10", "free": {"cpu": "500m", "nvidia.com/gpu": "1"}, "nodes": 3, "labels": {"zone": "b"}},
    {"id": "lab/edge-2", "free": {"cpu": "2"}, "nodes": 20, "labels": {}},
    {"id": "lab/edge-1", "free": {"cpu": "1500m", "nvidia.com/gpu": "2"}, "nodes": 1, "labels": {"zone": "a"}},
]


@pytest.mark.parametrize(
    ("path", "order"),
    [
        (".id", ["lab/edge-1", "lab/edge-2", "lab/edge-10"]),
        ("id", ["lab/edge-1", "lab/edge-2", "lab/edge-10"]),
        ("{.free.cpu}", ["lab/edge-10", "lab/edge-1", "lab/edge-2"]),
        (".nodes", ["lab/edge-1", "lab/edge-10", "lab/edge-2"]),
        (".labels.zone", ["lab/edge-2", "lab/edge-1", "lab/edge-10"]),
        (r".free.nvidia\.com/gpu", ["lab/edge-2", "lab/edge-10", "lab/edge-1"]),
    ],
)
def test_sorting_knows_quantities_and_numbers_in_names(path: str, order: list[str]) -> None:
    assert [item["id"] for item in sorted_by(CLUSTERS, path)] == order


def test_sorting_by_a_field_that_is_not_there_names_the_fields() -> None:
    with pytest.raises(
        Failure, match=r"no item has this field; the fields of an item are \.id, \.free, \.nodes, \.labels"
    ):
        sorted_by(CLUSTERS, ".cpu")
    assert sorted_by([], ".cpu") == []


def test_custom_columns() -> None:
    columns = custom_columns(r"custom-columns=NAME:.id,CPU:{.free.cpu},GPU:.free.nvidia\.com/gpu,BOTH:.free['cpu','x']")
    assert columns is not None
    assert [c.title for c in columns] == ["NAME", "CPU", "GPU", "BOTH"]
    assert [[c.text(item) for c in columns] for item in CLUSTERS[:2]] == [
        ["lab/edge-10", "500m", "1", "500m"],
        ["lab/edge-2", "2", "<none>", "2"],
    ]
    for bad in ("custom-columns=NAME", "custom-columns=:.id", "custom-columns=A:.id,B:", "custom-columns=A:.x("):
        with pytest.raises(Failure) as wrong:
            custom_columns(bad)
        assert wrong.value.code == 2


@pytest.mark.parametrize("output", ["xml", "jsonpath", "jsonpath=", "custom-columns=", "go-template={{.}}"])
def test_formats_that_are_not_known_are_wrong_usage(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["get", "clusters", "-o", output]) == 2
    assert "-o " in capsys.readouterr().err
