"""Tests the resources that `/v2` derives from Applications and the fleet, and its groups in `/v1`."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from moorage.bus import Bus
from moorage.model.controllers import Controller
from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh

from .conftest import EXAMPLE
from .test_v2_example import begin, describe, end, manifests, phase_of, prepare


def test_an_application_is_shown_as_resources(fleet_mesh: Mesh, rest: HttpClient) -> None:
    v1 = HttpClient(fleet_mesh, "/v1")
    document = yaml.safe_load((EXAMPLE / "application.yaml").read_text())
    document["metadata"] = {"name": "seen", "project": "elsewhere"}
    v1.must(200, "POST", "/apply", document)
    root = "/projects/elsewhere/composite-apps/seen/v1"
    group = root + "/deployment-intent-groups/default"
    assert {"metadata": {"name": "elsewhere"}} in rest.must(200, "GET", "/projects")
    assert rest.must(200, "GET", root)["spec"] == {"compositeAppVersion": "v1"}
    assert [a["metadata"]["name"] for a in rest.must(200, "GET", root + "/apps")] == ["analytics", "fwall"]
    assert [g["metadata"]["name"] for g in rest.must(200, "GET", root + "/deployment-intent-groups")] == ["default"]
    need = f"{group}/hpa-intents/fwall/hpa-resource-consumers/core-fwall/resource-requirements/core-fwall-gpu-needs"
    assert rest.must(200, "GET", need)["spec"] == {
        "mandatory": False,
        "allocatable": True,
        "weight": 9,
        "resource": {"name": "nvidia.com/gpu", "limits": 1},
    }
    phase_of(rest, group, "Running")
    refused = rest("POST", group + "/hpa-intents", {"metadata": {"name": "x"}, "spec": {"app": "fwall"}})
    assert (refused.status, refused.code) == (409, "MadeByApplication"), refused
    again = {"metadata": {"name": "default"}}
    assert rest("POST", root + "/deployment-intent-groups", again).status == 409
    refused = rest("DELETE", group + "/hpa-intents/fwall")
    assert (refused.status, refused.code) == (409, "MadeByApplication"), refused
    rest.must(202, "POST", group + "/stop")
    rest.must(202, "POST", group + "/instantiate")
    end(rest, group)


def test_its_groups_appear_in_v1(fleet_mesh: Mesh, rest: HttpClient) -> None:
    v1 = HttpClient(fleet_mesh, "/v1")
    path = prepare(rest, "both")
    describe(rest, path)
    group = "/groups/both/my-capp1/v1.0/my-dig1"
    assert v1.must(200, "GET", group)["state"] == "Created"
    begin(rest, path)
    why = v1.must(200, "GET", group + "/why")
    assert why["apps"]["fwall"]["clusters"] == ["lab/edge-3"]
    done = fleet_mesh.run("why", "both/my-capp1/v1.0/my-dig1", "-o", "json")
    assert json.loads(done.stdout)["phase"] == "Running"
    assert [a for a in v1.must(200, "GET", "/applications")["items"] if a["metadata"].get("project") == "both"] == []
    refused = v1("DELETE", group)
    assert (refused.status, refused.code) == (409, "MadeOfResources"), refused
    document = {
        "kind": "Application",
        "metadata": {"name": "one", "project": "both"},
        "spec": {"apps": [{"name": "a", "manifests": manifests()["fwall"]}]},
    }
    v1.must(200, "POST", "/apply", document)  # beside it
    for verb in ("stop", "instantiate", "terminate"):
        done = fleet_mesh.run(verb, "both/my-capp1/v1.0/my-dig1")
        assert done.returncode == 0, done.stderr
    phase_of(rest, path, "Terminated")
    v1("DELETE", "/applications/both/one")


def test_a_group_of_resources_is_not_overwritten_by_a_document(fleet_mesh: Mesh, rest: HttpClient) -> None:
    prepare(rest, "taken", "v1", "default")
    document = {
        "kind": "Application",
        "metadata": {"name": "my-capp1", "project": "taken"},
        "spec": {"apps": [{"name": "a", "manifests": manifests()["fwall"]}]},
    }
    refused = HttpClient(fleet_mesh, "/v1")("POST", "/apply", document)
    assert (refused.status, refused.code) == (409, "Conflict"), refused


def test_clusters_of_the_fleet_can_be_labelled(fleet_mesh: Mesh, rest: HttpClient) -> None:
    v1 = HttpClient(fleet_mesh, "/v1")
    where = "/cluster-providers/telco/clusters/pop-2"
    assert rest.must(200, "GET", where) == {"metadata": {"name": "pop-2"}}
    labels = [one["clusterLabel"] for one in rest.must(200, "GET", where + "/labels")]
    assert labels == ["region=us", "site=dallas"]
    rest.must(201, "POST", where + "/labels", {"clusterLabel": "night"})
    v1.until("/clusters/telco/pop-2", lambda c: c["labels"].get("night") == "")
    assert rest.must(200, "GET", "/cluster-providers/telco/clusters?label=night") == ["pop-2"]
    shown = rest.must(200, "GET", "/cluster-providers/telco/clusters?withLabels=true")
    assert {"clusterLabel": "night"} in next(c["labels"] for c in shown if c["metadata"]["name"] == "pop-2")
    assert rest("DELETE", where + "/labels/night").status == 204
    v1.until("/clusters/telco/pop-2", lambda c: "night" not in c["labels"] and c["labels"]["site"] == "dallas")
    rest.until(where + "/status", lambda status: status["connectivity"] == "available")
    rest.must(201, "POST", where + "/kv-pairs", {"metadata": {"name": "kv"}, "spec": {"kv": [{"a": 1}, {"b": "x"}]}})
    assert rest.must(200, "GET", where + "/kv-pairs/kv?key=b") == {"value": "x"}
    assert rest("GET", where + "/kv-pairs/kv?key=c").status == 404


@pytest.mark.parametrize(
    ("intent", "clusters"),
    [
        ({"allOf": [{"clusterProvider": "lab", "clusterLabel": "region=eu"}]}, {"edge-1", "edge-2", "edge-3"}),
        ({"allOf": [{"provider-name": "lab", "cluster-name": "edge-2"}]}, {"edge-2"}),
        (
            {
                "allOf": [
                    {"clusterProvider": "lab", "cluster": "edge-1"},
                    {"clusterProvider": "lab", "cluster": "edge-2"},
                ]
            },
            {"edge-1", "edge-2"},
        ),
        (
            {
                "allOf": [
                    {"clusterProvider": "lab", "cluster": "edge-1"},
                    {"anyOf": [{"clusterProvider": "telco", "cluster": "core-1"}]},
                ]
            },
            {"edge-1", "core-1"},
        ),
        (
            {
                "allOf": [
                    {"clusterProvider": "lab", "cluster": "edge-1"},
                    {"clusterProvider": "lab", "clusterLabel": "region=eu"},
                ]
            },
            {"edge-1", "edge-2", "edge-3"},
        ),
        ({"anyOf": [{"clusterProvider": "telco", "clusterLabel": "site=austin"}]}, {"core-1"}),
    ],
)
def test_placement_selects_clusters_by_name_and_label(
    rest: HttpClient, intent: dict[str, Any], clusters: set[str]
) -> None:
    project = f"place-{abs(hash(json.dumps(intent))) % 10**8}"
    rest.must(201, "POST", "/projects", {"metadata": {"name": project}})
    root = f"/projects/{project}/composite-apps"
    rest.must(201, "POST", root, {"metadata": {"name": "ca"}, "spec": {"version": "v1"}})
    deployment = next(m for m in manifests()["fwall"] if m["kind"] == "Deployment")
    app = {"metadata": {"name": "web"}, "spec": {"manifests": [deployment]}}
    assert rest.must(201, "POST", root + "/ca/v1/apps", app) == app
    group = root + "/ca/v1/deployment-intent-groups/g"
    rest.must(201, "POST", root + "/ca/v1/deployment-intent-groups", {"metadata": {"name": "g"}})
    rest.must(201, "POST", group + "/generic-placement-intents", {"metadata": {"name": "gpi"}})
    body = {"metadata": {"name": "one"}, "spec": {"app": "web", "intent": intent}}
    rest.must(201, "POST", group + "/generic-placement-intents/gpi/app-intents", body)
    status = begin(rest, group)
    assert {c["cluster"] for a in status["apps"] for c in a["clusters"]} == clusters
    end(rest, group)


def tgz(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


CHART = {
    "web/Chart.yaml": "apiVersion: v2\nname: web\nversion: 0.1.0\n",
    "web/values.yaml": "replicas: 1\n",
    "web/templates/d.yaml": "kind: Deployment\nspec: {replicas: {{ .Values.replicas }}}\n",
}


def test_apps_are_uploaded_as_files(rest: HttpClient) -> None:
    rest.must(201, "POST", "/projects", {"metadata": {"name": "uploads"}})
    root = "/projects/uploads/composite-apps"
    rest.must(201, "POST", root, {"metadata": {"name": "ca"}, "spec": {"compositeAppVersion": "v1"}})
    apps = root + "/ca/v1/apps"
    objects = manifests()["fwall"]
    text = yaml.safe_dump_all(objects)
    for name, file in (
        ("yaml", text.encode()),
        ("packed", gzip.compress(text.encode())),
        ("archive", tgz({"a.yaml": text, "README": "x"})),
    ):
        made = rest.upload("POST", apps, {"metadata": {"name": name}}, file)
        assert (made.status, made.body) == (201, {"metadata": {"name": name}}), made
        back = rest("GET", f"{apps}/{name}", Accept="application/octet-stream")
        assert list(yaml.safe_load_all(back.body)) == objects
    for file, code in (
        (b"kind: [", "Undecodable"),
        (b"just words", "Required"),
        (b"", "Empty"),
        (b"\x1f\x8bnonsense", "Undecodable"),
        (tgz({"README": "x"}), "NoManifests"),
        (b"{apiVersion: v1, kind: Pod}", "Required"),
    ):
        made = rest.upload("POST", apps, {"metadata": {"name": "bad"}}, file)
        assert made.status == 400, made
        assert code in {e["code"] for e in made.body["errors"]} | {made.code}, made
    chart = rest.upload("POST", apps, {"metadata": {"name": "chart"}}, tgz(CHART))
    assert (chart.status, chart.code) == (400, "HelmMissing"), chart
    assert "helm" in chart.body["detail"]


HELM = """#!{python}
import json, sys, tarfile
values = {{"replicas": 1}} | json.load(sys.stdin)
words = sys.argv[1:]
assert words[:1] == ["template"]
tarfile.open(words[2]).getmember("web/Chart.yaml")
for flag, value in zip(words, words[1:]):
    if flag == "--set":
        key, _, text = value.partition("=")
        values[key] = int(text)
if values["replicas"] > 8:
    sys.exit("too many")
container = {{"name": "c", "image": "i"}}
labels = {{"app": words[1]}}
print(json.dumps({{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {{"name": words[1]}}, "spec": {{
    "replicas": values["replicas"], "selector": {{"matchLabels": labels}},
    "template": {{"metadata": {{"labels": labels}}, "spec": {{"containers": [container]}}}}}}}}))
"""


def test_charts_are_rendered_with_the_values_of_profiles_and_the_group(tmp_path: Path) -> None:
    """A stub of `helm` checks how it is called."""
    import sys

    helm = tmp_path / "bin" / "helm"
    helm.parent.mkdir()
    helm.write_text(HELM.format(python=sys.executable))
    helm.chmod(helm.stat().st_mode | stat.S_IXUSR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{helm.parent}{os.pathsep}{os.environ['PATH']}")
        with Mesh("--fleet", str(EXAMPLE / "fleet.yaml")) as mesh:
            rest = HttpClient(mesh)
            rest.must(201, "POST", "/projects", {"metadata": {"name": "charts"}})
            root = "/projects/charts/composite-apps"
            rest.must(201, "POST", root, {"metadata": {"name": "ca"}, "spec": {"compositeAppVersion": "v1"}})
            made = rest.upload("POST", root + "/ca/v1/apps", {"metadata": {"name": "web"}}, tgz(CHART))
            assert made.status == 201, made
            rest.must(201, "POST", root + "/ca/v1/composite-profiles", {"metadata": {"name": "cp"}})
            profile = tgz(
                {
                    "manifest.yaml": "version: v1\ntype: {values: override_values.yaml}\n",
                    "override_values.yaml": "replicas: 3\n",
                }
            )
            body = {"metadata": {"name": "p"}, "spec": {"app-name": "web"}}
            made = rest.upload("POST", root + "/ca/v1/composite-profiles/cp/profiles", body, profile)
            assert (made.status, made.body["spec"]) == (201, {"app": "web"}), made
            groups = root + "/ca/v1/deployment-intent-groups"
            for name, overrides, replicas in (
                ("plain", [], 3),
                ("own", [{"app": "web", "values": {"replicas": 2}}], 2),
            ):
                spec = {"compositeProfile": "cp", "version": "r", "overrideValues": overrides}
                rest.must(201, "POST", groups, {"metadata": {"name": name}, "spec": spec})
                begin(rest, f"{groups}/{name}")
                status = rest.must(200, "GET", f"{groups}/{name}/status?output=detail")
                (cluster,) = status["apps"][0]["clusters"]
                assert cluster["resources"][0]["detail"]["spec"]["replicas"] == replicas
            spec = {"compositeProfile": "cp", "overrideValues": [{"app": "web", "values": {"replicas": 9}}]}
            rest.must(201, "POST", groups, {"metadata": {"name": "many"}, "spec": spec})
            rest.must(202, "POST", f"{groups}/many/approve")
            refused = rest("POST", f"{groups}/many/instantiate")
            assert (refused.status, refused.code) == (409, "ChartFailed"), refused
            assert "too many" in refused.body["detail"]


def test_unknown_fields_are_dropped_with_a_warning(rest: HttpClient) -> None:
    body = {"metadata": {"name": "warned", "colour": "blue"}, "extra": 1}
    made = rest("POST", "/projects", body)
    assert (made.status, made.body) == (201, {"metadata": {"name": "warned"}})
    assert "metadata.colour" in made.headers["warning"]
    assert made.headers["warning"].startswith("299 ")


def test_yaml_bodies_are_accepted(rest: HttpClient) -> None:
    text = b"metadata:\n  name: written-in-yaml\n  description: as the design has them\n"
    made = rest("POST", "/projects", text, kind="application/yaml")
    assert made.status == 201, made


def test_controller_priorities_are_kept_and_applied(rest: HttpClient) -> None:
    """They are stored for all; those of registered controllers break ties."""
    made = rest("POST", "/controllers", {"metadata": {"name": "labels"}, "spec": {"priority": 7}})
    assert made.status == 201 and "warning" not in made.headers
    assert priority(rest, "labels") == 7
    assert rest("PUT", "/controllers/labels", {"metadata": {"name": "labels"}, "spec": {"priority": 3}}).status == 200
    assert priority(rest, "labels") == 3
    assert rest("DELETE", "/controllers/labels").status == 204
    assert priority(rest, "labels") == 0
    other = rest("POST", "/controllers", {"metadata": {"name": "theirs"}, "spec": {"priority": 7}})
    assert other.status == 201 and "NotRegistered" in other.headers["warning"]
    assert rest("DELETE", "/controllers/theirs").status == 204


def priority(rest: HttpClient, name: str) -> int:
    async def read() -> int:
        bus = await Bus.connect(rest.mesh.settings, worker="admin")
        entry = await bus.bucket("moorage-controllers").get(name)
        await bus.close()
        assert entry is not None
        return msgspec.json.decode(entry.value, type=Controller).priority

    return asyncio.run(read())
