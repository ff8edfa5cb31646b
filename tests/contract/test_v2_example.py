"""Runs the usage example of the design with its original bodies, from an empty mesh to running pods and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from moorage_testkit.http_client import HttpClient

from .conftest import EXAMPLE

INTENTS = "/projects/{p}/composite-apps/my-capp1/v1.0/deployment-intent-groups/my-dig1/hpa-intents"
#: Paths below the intents and the bodies to POST there, as in the design.
BODIES = """
- to: ""
  body:
    metadata:
      name: fwall-hpa-intent
      description: Assign resurces to core-fwall and api-server
      userData1: foo
      userData2: bar
    spec:
      app: fwall
- to: /fwall-hpa-intent/hpa-resource-consumers
  body:
    metadata:
      name: core-fwall
      description: core-fwall microservice
    spec:
      consumer:
        apiVersion: apps/v1
        kind: StatefulSet
        name: core-fwall
        container-name: palo-alto-e3000
- to: /fwall-hpa-intent/hpa-resource-consumers
  body:
    metadata:
      name: api-server
      description: api-server microservice
    spec:
      consumer:
        apiVersion: apps/v1
        kind: Deployment
        name: api-server
        container-name: nginx
- to: /fwall-hpa-intent/hpa-resource-consumers/core-fwall/resource-requirements
  body:
    metadata:
      name: core-fwall-cpu-requirement
    spec:
      mandatory: true
      allocatable: true
      name: cpu
      requests: 4
      limits: 4
- to: /fwall-hpa-intent/hpa-resource-consumers/core-fwall/resource-requirements
  body:
    metadata:
      name: core-fwall-RAM-needs
    spec:
      mandatory: true
      allocatable: true
      name: memory
      requests: 1000
      limits: 1000
      units: MB
- to: /fwall-hpa-intent/hpa-resource-consumers/core-fwall/resource-requirements
  body:
    metadata:
      name: core-fwall-gpu-needs
    spec:
      mandatory: false
      weight: 9
      allocatable: true
      name: nvidia.com/gpu
      limits: 1
- to: /fwall-hpa-intent/hpa-resource-consumers/api-server/resource-requirements
  body:
    metadata:
      name: api-server-cpu-needs
    spec:
      mandatory: true
      allocatable: true
      name: cpu
      requests: 1
      limits: 2
- to: /fwall-hpa-intent/hpa-resource-consumers/api-server/resource-requirements
  body:
    metadata:
      name: api-server-ram-needs
    spec:
      mandatory: true
      allocatable: true
      name: memory
      requests: 200
      units: MB
- to: ""
  body:
    metadata:
      name: analytics-hpa-intent
      description: Assign resurces to ai-model and logger
      userData1: foo
      userData2: bar
    spec:
      app: analytics
- to: /analytics-hpa-intent/hpa-resource-consumers
  body:
    metadata:
      name: ai-model
      description: ai-model microservice
    spec:
      consumer:
        apiVersion: apps/v1
        kind: StatefulSet
        name: ai-model
        container-name: openvino
- to: /analytics-hpa-intent/hpa-resource-consumers
  body:
    metadata:
      name: logger
      description: logger microservice
    spec:
      consumer:
        apiVersion: apps/v1
        kind: Deployment
        name: logger
        container-name: logger
- to: /analytics-hpa-intent/hpa-resource-consumers/ai-model/resource-requirements
  body:
    metadata:
      name: ai-model-cpu-requirement
    spec:
      mandatory: true
      allocatable: true
      name: cpu
      requests: 2
- to: /analytics-hpa-intent/hpa-resource-consumers/logger/resource-requirements
  body:
    metadata:
      name: logger-cpu-needs
    spec:
      mandatory: true
      allocatable: true
      name: intel.com/qat
      requests: 1
      limits: 1
"""
POSTS: list[dict[str, Any]] = yaml.safe_load(BODIES)


def manifests() -> dict[str, list[dict[str, Any]]]:
    document = yaml.safe_load((EXAMPLE / "application.yaml").read_text())
    return {app["name"]: app["manifests"] for app in document["spec"]["apps"]}


def prepare(rest: HttpClient, project: str, version: str = "v1.0", group: str = "my-dig1") -> str:
    """Creates everything but the hardware intents, and returns the path of the group."""
    if rest("GET", f"/projects/{project}").status == 404:
        rest.must(201, "POST", "/projects", {"metadata": {"name": project}})
    apps = f"/projects/{project}/composite-apps"
    rest.must(201, "POST", apps, {"metadata": {"name": "my-capp1"}, "spec": {"compositeAppVersion": version}})
    for name, objects in manifests().items():
        text = yaml.safe_dump_all(objects).encode()
        made = rest.upload("POST", f"{apps}/my-capp1/{version}/apps", {"metadata": {"name": name}}, text)
        assert made.status == 201, made
    groups = f"{apps}/my-capp1/{version}/deployment-intent-groups"
    rest.must(201, "POST", groups, {"metadata": {"name": group}, "spec": {"version": "r1"}})
    return f"{groups}/{group}"


def describe(rest: HttpClient, path: str) -> None:
    for post in POSTS:
        rest.must(201, "POST", f"{path}/hpa-intents{post['to']}", post["body"])


def begin(rest: HttpClient, path: str, phase: str = "Running") -> dict[str, Any]:
    rest.must(202, "POST", path + "/approve")
    rest.must(202, "POST", path + "/instantiate")
    return phase_of(rest, path, phase)


def phase_of(rest: HttpClient, path: str, phase: str) -> dict[str, Any]:
    found: dict[str, Any] = rest.until(path + "/status", lambda s: s["phase"] == phase)
    return found


def end(rest: HttpClient, path: str) -> None:
    rest.must(202, "POST", path + "/terminate")
    phase_of(rest, path, "Terminated")


def applied(rest: HttpClient, path: str, kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """Returns where an object runs, and in which form."""
    status = rest.must(200, "GET", f"{path}/status?output=detail&resource={name}")
    for app in status["apps"]:
        for cluster in app["clusters"]:
            for resource in cluster["resources"]:
                if resource["GVK"]["Kind"] == kind:
                    return f"{cluster['clusterProvider']}/{cluster['cluster']}", resource["detail"]
    raise AssertionError(f"{kind} {name} runs nowhere: {status}")


def container(detail: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = detail["spec"]["template"]["spec"]["containers"][0]["resources"]
    return found


@pytest.fixture
def example(rest: HttpClient, request: pytest.FixtureRequest) -> Iterator[tuple[HttpClient, str]]:
    project = f"p-{abs(hash(request.node.name)) % 10**8}"
    path = prepare(rest, project)
    describe(rest, path)
    yield rest, path
    if rest.must(200, "GET", path + "/status")["state"] not in ("Created", "Approved", "Terminated"):
        end(rest, path)


@pytest.mark.parametrize("rest", ["/v2", ""], ids=["v2", "bare"], indirect=True)
def test_the_thirteen_bodies_create_a_group_that_runs_on_matching_hardware(example: tuple[HttpClient, str]) -> None:
    rest, path = example
    assert len(POSTS) == 13
    found = rest.must(200, "GET", path + "/hpa-intents/fwall-hpa-intent")
    assert found["spec"]["app"] == "fwall"
    (api, core) = found["spec"]["resourceConsumers"]
    assert core["spec"].pop("resourceRequirements") == [
        {
            "metadata": {"name": "core-fwall-RAM-needs"},
            "spec": {
                "mandatory": True,
                "allocatable": True,
                "resource": {"name": "memory", "requests": 1000, "limits": 1000, "units": "MB"},
            },
        },
        {
            "metadata": {"name": "core-fwall-cpu-requirement"},
            "spec": {
                "mandatory": True,
                "allocatable": True,
                "resource": {"name": "cpu", "requests": 4, "limits": 4},
            },
        },
        {
            "metadata": {"name": "core-fwall-gpu-needs"},
            "spec": {
                "mandatory": False,
                "weight": 9,
                "allocatable": True,
                "resource": {"name": "nvidia.com/gpu", "limits": 1},
            },
        },
    ]
    assert core["spec"] == {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "core-fwall",
        "container": "palo-alto-e3000",
    }
    assert api["metadata"]["name"] == "api-server"

    status = begin(rest, path)
    assert (status["deployedStatus"], status["readyStatus"]) == ("Instantiated", "Ready")
    where, detail = applied(rest, path, "StatefulSet", "core-fwall")
    assert where == "lab/edge-3"
    wanted = {"cpu": "4", "memory": "1G", "nvidia.com/gpu": "1"}
    assert container(detail) == {"requests": wanted, "limits": wanted}
    where, detail = applied(rest, path, "Deployment", "logger")
    assert where == "telco/pop-1"
    assert container(detail) == {"requests": {"intel.com/qat": "1"}, "limits": {"intel.com/qat": "1"}}
    _, detail = applied(rest, path, "Deployment", "api-server")
    assert container(detail) == {"requests": {"cpu": "1", "memory": "200M"}, "limits": {"cpu": "2"}}
    (decision,) = HttpClient(rest.mesh, "/v1").must(200, "GET", f"/decisions?group={status['group']}")["items"]
    (core,) = [c for c in decision["claims"] if c["object"] == "StatefulSet/core-fwall"]
    assert [slot["resources"]["moorage.dev/exclusive-cpu"] for slot in core["slots"]] == ["4"]


def test_without_a_gpu_the_optional_need_is_not_granted(example: tuple[HttpClient, str]) -> None:
    rest, path = example
    other = prepare(rest, path.split("/")[2] + "-b")
    describe(rest, other)
    begin(rest, path)
    begin(rest, other)  # the only GPU on a node with whole cores is taken now
    try:
        _, detail = applied(rest, other, "StatefulSet", "core-fwall")
        wanted = {"cpu": "4", "memory": "1G"}
        assert container(detail) == {"requests": wanted, "limits": wanted}
    finally:
        end(rest, other)


def test_an_edit_takes_effect_with_update(example: tuple[HttpClient, str]) -> None:
    rest, path = example
    first = begin(rest, path)
    need = f"{path}/hpa-intents/analytics-hpa-intent/hpa-resource-consumers/ai-model/resource-requirements"
    body = POSTS[11]["body"]
    body = {**body, "spec": {**body["spec"], "requests": 1}}
    rest.must(200, "PUT", f"{need}/ai-model-cpu-requirement", body)
    before = rest.must(200, "GET", path + "/status")
    assert before["revision"] == first["revision"]
    assert before["states"]["statusctxid"] == first["states"]["statusctxid"]
    assert container(applied(rest, path, "StatefulSet", "ai-model")[1])["requests"] == {"cpu": "2"}
    answered = rest.must(202, "POST", path + "/update")
    assert (answered["outcome"], answered["revision"]) == ("updated", first["revision"] + 1)
    rest.until(path + "/status", lambda s: s["revision"] == first["revision"] + 1 and s["phase"] == "Running")
    assert container(applied(rest, path, "StatefulSet", "ai-model")[1])["requests"] == {"cpu": "1"}
    assert rest.must(202, "POST", path + "/update")["outcome"] == "unchanged"

    answered = rest.must(202, "POST", path + "/rollback", {"spec": {"revision": str(first["revision"])}})
    assert answered["revision"] == first["revision"] + 2
    rest.until(path + "/status", lambda s: s["revision"] == answered["revision"] and s["phase"] == "Running")
    assert container(applied(rest, path, "StatefulSet", "ai-model")[1])["requests"] == {"cpu": "2"}
    assert rest("POST", path + "/rollback", {"spec": {"revision": "77"}}).status == 404
    assert rest("POST", path + "/rollback", {}).status == 400


@pytest.mark.parametrize("rest", ["/v2", ""], ids=["v2", "bare"], indirect=True)
def test_lifecycle_steps_name_the_wrong_state_and_can_be_repeated(example: tuple[HttpClient, str]) -> None:
    rest, path = example

    def refused(*verbs: str, state: str) -> None:
        for verb in verbs:
            body = {"spec": {"revision": "1", "targetDigName": "x"}} if verb in ("rollback", "migrate") else None
            answered = rest("POST", f"{path}/{verb}", body)
            if verb == "migrate" and answered.status == 404:
                continue  # there is no such target
            assert (answered.status, answered.code) == (409, "WrongState"), (verb, answered)
            assert f" is {state};" in answered.body["detail"]

    def twice(verb: str, state: str) -> None:
        first = rest("POST", f"{path}/{verb}")
        assert (first.status, first.body["state"]) == (202, state), first
        assert first.headers["location"] == rest.prefix + path + "/status"
        again = rest("POST", f"{path}/{verb}")
        assert (again.status, again.body["state"], again.body["outcome"]) == (202, state, "unchanged"), again
        assert again.body["revision"] == first.body["revision"]

    status = rest.must(200, "GET", path + "/status")
    assert (status["state"], status["phase"], status["deployedStatus"]) == ("Created", "Draft", "Created")
    refused("instantiate", "update", "stop", "terminate", "rollback", "migrate", state="Created")
    twice("approve", "Approved")
    refused("update", "stop", "terminate", "rollback", "migrate", state="Approved")
    twice("instantiate", "Instantiated")
    refused("approve", state="Instantiated")
    assert rest("DELETE", path).status == 409
    twice("stop", "InstantiateStopped")
    refused("approve", state="InstantiateStopped")
    twice("instantiate", "Instantiated")
    phase_of(rest, path, "Running")
    twice("terminate", "Terminated")
    phase_of(rest, path, "Terminated")
    refused("update", "rollback", "migrate", state="Terminated")
    twice("stop", "TerminateStopped")
    twice("instantiate", "Instantiated")
    phase_of(rest, path, "Running")
    actions = rest.must(200, "GET", path + "/status")["states"]["actions"]
    assert [a["state"] for a in actions] == [
        "Created",
        "Approved",
        "Instantiated",
        "InstantiateStopped",
        "Instantiated",
        "Terminated",
        "TerminateStopped",
        "Instantiated",
    ]


def test_terminating_at_once_leaves_nothing(example: tuple[HttpClient, str]) -> None:
    rest, path = example
    v1 = HttpClient(rest.mesh, "/v1")
    rest.must(202, "POST", path + "/approve")
    for _ in range(5):
        rest.must(202, "POST", path + "/instantiate")
        group = rest.must(202, "POST", path + "/terminate")["group"]
        phase_of(rest, path, "Terminated")
        assert v1.must(200, "GET", f"/decisions?group={group}")["items"] == []
    for cluster in v1.must(200, "GET", "/clusters")["items"]:
        claims = v1.must(200, "GET", f"/clusters/{cluster['id']}")["claims"]
        assert [c for c in claims if c["group"] == group] == []


@pytest.mark.parametrize("rest", ["/v2", ""], ids=["v2", "bare"], indirect=True)
def test_migrate_replaces_a_group(example: tuple[HttpClient, str]) -> None:
    rest, path = example
    project = path.split("/")[2]
    begin(rest, path)
    target = prepare(rest, project, "v2.0", "my-dig2")
    order = {"spec": {"targetCompositeAppVersion": "v2.0", "targetDigName": "my-dig2"}}
    answered = rest("POST", path + "/migrate", order)
    assert (answered.status, answered.code) == (409, "WrongState"), answered
    assert "is Created" in answered.body["detail"]
    rest.must(202, "POST", target + "/approve")
    answered = rest("POST", path + "/migrate", order)
    assert answered.status == 202, answered
    assert answered.headers["location"] == rest.prefix + target + "/status"
    phase_of(rest, target, "Running")
    phase_of(rest, path, "Terminated")
    assert rest.must(200, "GET", target + "/status")["phase"] == "Running"
    end(rest, target)


def test_status_has_every_form(example: tuple[HttpClient, str]) -> None:
    rest, path = example
    begin(rest, path)
    summary = rest.must(200, "GET", path + "/status?output=summary")
    assert "apps" not in summary
    assert summary["readyCounts"] == {"Ready": 8}
    full_status = rest.must(200, "GET", path + "/status?output=all")
    assert [app["name"] for app in full_status["apps"]] == ["analytics", "fwall"]
    assert "detail" not in full_status["apps"][0]["clusters"][0]["resources"][0]
    one = rest.must(200, "GET", path + "/status?app=fwall&resource=core-fwall")
    (app,) = one["apps"]
    kinds = [r["GVK"]["Kind"] for r in app["clusters"][0]["resources"]]
    assert sorted(kinds) == ["Service", "StatefulSet"]
    for text in ("telco%2Bpop-1", "telco+pop-1", "telco/pop-1"):
        found = rest.must(200, "GET", f"{path}/status?cluster={text}")
        assert [a["name"] for a in found["apps"] if a["clusters"]] == ["analytics"]
    assert rest("GET", path + "/status?output=everything").status == 400
    unknown = rest("GET", path + "/status?app=fwall&app=nobody")
    assert (unknown.status, unknown.code) == (404, "NotFound")
    assert rest("POST", path + "/status").status == 202
    names = rest.must(200, "GET", path + "/status?apps")
    assert names["apps"] == [{"name": "analytics"}, {"name": "fwall"}]


def test_contradictions_are_refused_before_anything_is_claimed(rest: HttpClient) -> None:
    path = prepare(rest, "broken")
    describe(rest, path)
    consumers = path + "/hpa-intents/fwall-hpa-intent/hpa-resource-consumers"
    spec = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "nobody", "container": "c"}
    rest.must(201, "POST", consumers, {"metadata": {"name": "wrong"}, "spec": spec})
    rest.must(201, "POST", consumers, {"metadata": {"name": "loose"}, "spec": {**spec, "container": ""}})
    amount = {"allocatable": True, "resource": {"name": "cpu", "requests": 1}}
    needs = consumers + "/loose/resource-requirements"
    answered = rest("POST", needs, {"metadata": {"name": "cpu"}, "spec": amount})
    assert (answered.status, answered.body["errors"][0]["path"]) == (400, "spec.allocatable"), answered
    label = {"allocatable": False, "resource": {"key": "avx", "value": "true"}}
    rest.must(201, "POST", needs, {"metadata": {"name": "avx"}, "spec": label})
    assert rest("DELETE", needs).status == 204
    assert rest("DELETE", consumers + "/loose").status == 204
    rest.must(202, "POST", path + "/approve")
    answered = rest("POST", path + "/instantiate")
    assert (answered.status, answered.code) == (409, "ConsumerMatchesNothing"), answered
    assert "core-fwall" in answered.body["detail"], "it names what there is instead"
    assert rest.must(200, "GET", path + "/status")["state"] == "Approved"
    assert rest("DELETE", consumers + "/wrong").status == 204
    odd = {"metadata": {"name": "odd"}, "spec": {"app": "nothing"}}
    for method, at in (("POST", "/hpa-intents"), ("PUT", "/hpa-intents/analytics-hpa-intent")):
        answered = rest(method, path + at, {**odd, "metadata": {"name": at.rpartition("/")[2]}})
        assert (answered.status, answered.code) == (409, "UnknownApp"), answered
        assert "analytics, fwall" in answered.body["detail"], "it names the apps that there are"
    assert rest("GET", path + "/hpa-intents/odd").status == 404


def test_a_logical_cloud_limits_clusters_and_sets_the_namespace(rest: HttpClient) -> None:
    path = prepare(rest, "bounded")
    cloud = "/projects/bounded/logical-clouds"
    group = {"metadata": {"name": path.rpartition("/")[2]}, "spec": {"version": "r1", "logicalCloud": "east"}}
    rest.must(200, "PUT", path, group)
    describe(rest, path)
    rest.must(202, "POST", path + "/approve")
    answered = rest("POST", path + "/instantiate")
    assert (answered.status, answered.code) == (409, "UnknownCloud"), answered
    rest.must(201, "POST", cloud, {"metadata": {"name": "east"}, "spec": {"level": "1", "namespace": "east-ns"}})
    assert rest("POST", path + "/instantiate").code == "NoClusters"

    def refer(provider: str, cluster: str) -> None:
        spec = {"clusterProvider": provider, "cluster": cluster}
        rest.must(201, "POST", cloud + "/east/cluster-references", {"metadata": {"name": cluster}, "spec": spec})

    refer("lab", "edge-2")  # the second-best cluster for one app; the other app does not fit there
    rest.must(202, "POST", path + "/instantiate")
    assert all(not app["clusters"] for app in phase_of(rest, path, "Pending")["apps"])
    refer("telco", "pop-1")
    rest.must(202, "POST", path + "/update")
    status = phase_of(rest, path, "Running")
    placed = {app["name"]: [c["cluster"] for c in app["clusters"]] for app in status["apps"]}
    assert placed == {"fwall": ["edge-2"], "analytics": ["pop-1"]}
    _, object_there = applied(rest, path, "StatefulSet", "core-fwall")
    assert object_there["metadata"]["namespace"] == "east-ns"
    end(rest, path)


def test_a_parameter_selects_one_of_a_list(rest: HttpClient) -> None:
    path = prepare(rest, "asked")
    describe(rest, path)
    intents = path + "/hpa-intents"
    consumers = intents + "/fwall-hpa-intent/hpa-resource-consumers"
    needs = consumers + "/core-fwall/resource-requirements"
    for collection, parameter, name in (
        (intents, "intent", "fwall-hpa-intent"),
        (consumers, "consumer", "core-fwall"),
        (needs, "resource", "core-fwall-cpu-requirement"),
    ):
        answered = rest("GET", f"{collection}?{parameter}={name}")
        one = rest("GET", f"{collection}/{name}")
        assert (answered.status, answered.body) == (200, one.body)
        assert answered.headers["etag"] == one.headers["etag"]
        assert rest("GET", f"{collection}?{parameter}=nobody").code == "NotFound"
        assert len(rest.must(200, "GET", f"{collection}?other={name}")) > 1


def test_an_intent_lists_its_consumers_also_when_empty(rest: HttpClient) -> None:
    path = prepare(rest, "bare")
    intent = {"metadata": {"name": "h"}, "spec": {"app": "fwall"}}
    shown = {**intent, "spec": {"app": "fwall", "resourceConsumers": []}}
    assert rest.must(201, "POST", path + "/hpa-intents", intent) == shown
    assert rest.must(200, "GET", path + "/hpa-intents/h") == shown
    assert rest.must(200, "GET", path + "/hpa-intents") == [shown]
    assert rest.must(200, "PUT", path + "/hpa-intents/h", shown) == shown


def test_an_empty_label_value_is_kept(rest: HttpClient) -> None:
    path = prepare(rest, "empty")
    rest.must(201, "POST", path + "/hpa-intents", {"metadata": {"name": "h"}, "spec": {"app": "fwall"}})
    consumers = path + "/hpa-intents/h/hpa-resource-consumers"
    rest.must(201, "POST", consumers, {"metadata": {"name": "c"}, "spec": {"name": "core-fwall"}})
    needs = consumers + "/c/resource-requirements"
    resource = {"key": "node-role.kubernetes.io/worker", "value": ""}
    given = {"metadata": {"name": "n"}, "spec": {"allocatable": False, "mandatory": True, "resource": resource}}
    assert rest.must(201, "POST", needs, given)["spec"]["resource"] == resource
    assert rest.must(200, "GET", needs + "/n")["spec"]["resource"] == resource
    rest.must(200, "PUT", needs + "/n", rest.must(200, "GET", needs + "/n"))
    rest.must(202, "POST", path + "/approve")
    rest.must(202, "POST", path + "/instantiate")

    def lacks_it(status: dict[str, Any]) -> bool:
        return any(r["code"] == "LabelMissing" and r["need"] == resource["key"] for r in status.get("reasons", ()))

    rest.until(path + "/status", lambda s: s["phase"] == "Pending" and lacks_it(s))
    rest.must(202, "POST", path + "/terminate")
