"""Lists on a running mesh: a column for each resource, ages, sorting, and the formats of kubectl."""

from __future__ import annotations

import re

import pytest

from moorage_testkit.mesh import Mesh


def ran(mesh: Mesh, *arguments: str, code: int = 0) -> str:
    done = mesh.run(*arguments)
    assert done.returncode == code, f"{arguments}: {done.stdout.decode()}\n{done.stderr.decode()}"
    return done.stdout.decode() if code == 0 else done.stderr.decode()


def test_clusters_show_what_is_used_of_each_resource(example: Mesh) -> None:
    ran(example, "wait", "app1", "--for", "phase=Running", "--timeout", "90s")
    heading, *rows = ran(example, "get", "clusters").splitlines()
    titles = re.split(r" {3,}", heading)
    assert titles == ["CLUSTER", "STATE", "NODES", "CPU", "MEMORY", "GPU", "QAT", "AGE", "REPORT"] or {
        "CPU", "MEMORY", "QAT", "GPU", "AGE", "REPORT",
    } <= set(titles)  # fmt: skip
    cells = dict(zip(titles, re.split(r" {3,}", next(r for r in rows if r.startswith("lab/edge-3"))), strict=True))
    assert cells["CPU"] == "5/32 16%" and cells["GPU"] == "1/1 100%" and cells["QAT"] == "-"
    assert re.fullmatch(r"\d+[smh].*", cells["AGE"]) and re.fullmatch(r"\d+s ago", cells["REPORT"])
    assert "PODS" not in heading and "PODS" in ran(example, "get", "clusters", "-o", "wide").splitlines()[0]


def test_nodes_show_it_too(example: Mesh) -> None:
    heading, *rows = ran(example, "get", "nodes", "--cluster", "lab/edge-3").splitlines()
    titles = re.split(r" {3,}", heading)
    cells = [dict(zip(titles, re.split(r" {3,}", row), strict=True)) for row in rows]
    assert {c["NODE"]: c["CPU"] for c in cells}["gpu-node"] == "4/16 25%" and all(c["AGE"] != "-" for c in cells)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["get", "clusters", "-o", "jsonpath={.items[*].id}"],
         "lab/edge-1 lab/edge-2 lab/edge-3 telco/core-1 telco/pop-1 telco/pop-2"),
        (["get", "cluster", "lab/edge-3", "-o", "jsonpath={.allocatable.cpu}"], "32"),
        (["get", "nodes", "--cluster", "lab/edge-3", "--sort-by", ".allocatable.cpu", "--no-headers", "-o",
          "custom-columns=NODE:.name,CPU:.allocatable.cpu,GPU:.allocatable.nvidia\\.com/gpu"],
         "node-0     8    <none>\nnode-1     8    <none>\ngpu-node   16   1\n"),
        (["get", "nodes", "--sort-by={.allocatable.memory}", "-o", "jsonpath={.items[-1:].name}"], "gpu-node-1"),
        (["cluster", "get", "lab/edge-3", "--no-headers", "-o", "custom-columns=X:.id"], "lab/edge-3\n"),
        (["controllers", "--sort-by", ".name", "-o", "custom-columns=NAME:.name", "--no-headers"], "affinity\nhpa\nlabels\nmachine\nresource-class\ntopology\n"),
        (["token", "list", "-o", "jsonpath={.items[?(@.name==\"nobody\")]}"], ""),
        (["fleet", "--sort-by", ".id", "-o", "jsonpath={.items[0].id}"], "lab/edge-1"),
    ],
)  # fmt: skip
def test_kubectls_formats(example: Mesh, arguments: list[str], text: str) -> None:
    assert ran(example, *arguments) == text


def test_headings_can_be_left_out(example: Mesh) -> None:
    with_them, without = ran(example, "get", "groups"), ran(example, "get", "groups", "--no-headers")
    assert len(with_them.splitlines()) == len(without.splitlines()) + 1 and "GROUP" not in without


def test_a_field_that_no_item_has_is_wrong_usage(example: Mesh) -> None:
    assert "the fields of an item are .id, .state" in ran(example, "get", "clusters", "--sort-by", "cpu", code=2)
