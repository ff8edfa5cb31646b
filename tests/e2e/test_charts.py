"""Renders `{chart: …}` with the real helm, from the file to running pods."""

from __future__ import annotations

import io
import json
import os
import tarfile
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from moorage_testkit import kube_assets
from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh

FILES = {
    "Chart.yaml": "apiVersion: v2\nname: web\nversion: 0.1.0\n",
    "values.yaml": "replicas: 1\nimage: nginx:1.27\ncpu: 100m\n",
    "crds/thing.yaml": """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  names: {kind: Thing, plural: things}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
""",
    "templates/web.yaml": """
{{- if gt (int .Values.replicas) 9 }}{{ fail "at most nine replicas" }}{{ end }}
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}-nginx}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - {name: c, image: {{ .Values.image | quote }}, resources: {requests: {cpu: {{ .Values.cpu }}}}}
""",
    "templates/tests/try.yaml": """
apiVersion: v1
kind: Pod
metadata: {name: try, annotations: {"helm.sh/hook": test}}
spec: {containers: [{name: c, image: busybox}]}
""",
}
DOCUMENT = """
apiVersion: moorage.dev/v1alpha1
kind: Application
metadata: {name: charted}
spec:
  apps:
    - name: web
      manifests: [{chart: charts/web, values: VALUES}]
"""


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    helm = kube_assets.helm()
    if helm is None:
        pytest.skip("no helm; `make kube-assets` builds it")
    monkeypatch.setenv("PATH", f"{helm.parent}{os.pathsep}{os.environ['PATH']}")
    yield


def written(place: Path, values: str) -> str:
    for name, text in FILES.items():
        file = place / "charts/web" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    document = place / "charted.yaml"
    document.write_text(DOCUMENT.replace("VALUES", values))
    return str(document)


@pytest.mark.usefixtures("path")
def test_a_chart_is_applied_changed_and_deleted(example: Mesh, tmp_path: Path) -> None:
    file = written(tmp_path, "{replicas: 2}")
    made = example.run("apply", "-f", file)
    assert made.returncode == 0, made.stderr.decode()
    try:
        assert example.run("wait", "charted", "--for", "phase=Running", "--timeout", "90s").returncode == 0
        shown = json.loads(example.run("get", "application", "charted", "-o", "json").stdout)
        objects = {f"{m['kind']}/{m['metadata']['name']}": m for m in shown["spec"]["apps"][0]["manifests"]}
        assert objects.keys() == {"CustomResourceDefinition/things.example.com", "Deployment/web-nginx"}, "no tests"
        spec = objects["Deployment/web-nginx"]["spec"]
        assert spec["replicas"] == 2
        assert spec["template"]["spec"]["containers"][0]["image"] == "nginx:1.27", "the chart's own values hold"
        why = json.loads(example.run("why", "charted", "-o", "json").stdout)
        (claim,) = why["apps"]["web"]["claims"]
        assert sum(slot.get("count", 1) for slot in claim["slots"]) == 2

        assert b"unchanged" in example.run("apply", "-f", file).stdout
        again = example.run("apply", "-f", written(tmp_path, "{replicas: 3}"))
        assert b"updated" in again.stdout, again
        refused = example.run("apply", "-f", written(tmp_path, "{replicas: 10}"))
        assert refused.returncode == 1 and b"at most nine replicas" in refused.stderr
        assert b"manifests[0].chart" in refused.stderr
    finally:
        assert example.run("delete", "application", "charted").returncode == 0


def archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in FILES.items():
            info = tarfile.TarInfo(f"web/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.mark.usefixtures("path")
def test_an_uploaded_chart_is_rendered_without_its_tests(example: Mesh) -> None:
    rest = HttpClient(example)
    rest.must(201, "POST", "/projects", {"metadata": {"name": "charted"}})
    apps = "/projects/charted/composite-apps"
    rest.must(201, "POST", apps, {"metadata": {"name": "web"}, "spec": {"compositeAppVersion": "v1"}})
    made = rest.upload("POST", f"{apps}/web/v1/apps", {"metadata": {"name": "web"}}, archive())
    assert made.status == 201, made
    group = f"{apps}/web/v1/deployment-intent-groups/g"
    override = {"app": "web", "values": {"replicas": 2, "image": "nginx:1,28"}}
    spec = {"version": "r", "overrideValues": [override]}
    rest.must(201, "POST", f"{apps}/web/v1/deployment-intent-groups", {"metadata": {"name": "g"}, "spec": spec})
    rest.must(202, "POST", f"{group}/approve")
    rest.must(202, "POST", f"{group}/instantiate")
    try:
        rest.until(f"{group}/status", lambda status: status["phase"] == "Running")
        status = rest.must(200, "GET", f"{group}/status?output=detail")
        (cluster,) = status["apps"][0]["clusters"]
        resources = {f"{r['GVK']['Kind']}/{r['name']}": r for r in cluster["resources"]}
        assert resources.keys() == {"CustomResourceDefinition/things.example.com", "Deployment/r-nginx"}
        deployment = resources["Deployment/r-nginx"]["detail"]["spec"]
        assert deployment["replicas"] == 2
        assert deployment["template"]["spec"]["containers"][0]["image"] == "nginx:1,28"
    finally:
        rest.must(202, "POST", f"{group}/terminate")
        rest.until(f"{group}/status", lambda status: status["phase"] == "Terminated")


GROUP = "projects/{{.Project}}/composite-apps/web/v1/deployment-intent-groups"
DOCUMENTS: list[tuple[str, str]] = [
    ("projects", "metadata: {name: {{.Project}}}"),
    ("projects/{{.Project}}/logical-clouds", 'metadata: {name: {{.Cloud}}}\nspec: {level: "0"}'),
    (
        "projects/{{.Project}}/logical-clouds/{{.Cloud}}/cluster-references",
        "metadata: {name: one}\nspec: {clusterProvider: lab, cluster: edge-2}",
    ),
    ("projects/{{.Project}}/composite-apps", "metadata: {name: web}\nspec: {compositeAppVersion: v1}"),
    ("projects/{{.Project}}/composite-apps/web/v1/apps", "metadata: {name: web}\nfile:\n  {{.Chart}}"),
    (
        GROUP,
        (
            "metadata: {name: g}\n"
            "spec: {version: r1, logicalCloud: {{.Cloud}}, overrideValues: [{app: web, values: {cpu: 250m}}]}"
        ),
    ),
    (
        f"{GROUP}/g/intents",
        (
            "metadata: {name: map}\n"
            "spec: {intent: {genericPlacementIntent: gpi, hpa-placement-controller-1: some, ovnaction: other}}"
        ),
    ),
    (f"{GROUP}/g/generic-placement-intents", "metadata: {name: gpi}"),
    (
        f"{GROUP}/g/generic-placement-intents/gpi/app-intents",
        (
            "metadata: {name: web}\n"
            "spec: {app: web, intent: {anyOf: [{clusterProvider: lab, clusterLabel: region=eu}, "
            "{clusterProvider: lab, clusterLabel: nowhere}]}}"
        ),
    ),
    (f"{GROUP}/g/hpa-intents", "metadata: {name: hpa}\nspec: {app: web}"),
    (
        f"{GROUP}/g/hpa-intents/hpa/hpa-resource-consumers",
        "metadata: {name: c}\nspec: {apiVersion: v19, kind: Deployment, replicas: 2, name: r1-nginx, container: c}",
    ),
    (
        f"{GROUP}/g/hpa-intents/hpa/hpa-resource-consumers/c/resource-requirements",
        (
            "metadata: {name: cpu}\n"
            'spec: {allocatable: true, mandatory: true, weight: 1, resource: {"name": "cpu", "requests": 1, "limits": 1}}'
        ),
    ),
    (f"{GROUP}/g/approve", ""),
    (f"{GROUP}/g/instantiate", ""),
]


@pytest.mark.usefixtures("path")
def test_emco_files_name_objects_after_their_releases(example: Mesh, tmp_path: Path) -> None:
    (tmp_path / "web.tgz").write_bytes(archive())
    (tmp_path / "values.yaml").write_text("Project: emco-charts\nCloud: default\nChart: web.tgz\n")
    file = tmp_path / "group.yaml"
    file.write_text(
        "".join(f"---\nversion: emco/v2\nresourceContext:\n  anchor: {anchor}\n{body}\n" for anchor, body in DOCUMENTS)
    )

    def run(verb: str) -> str:
        done = example.run(verb, "-f", str(file), "-v", str(tmp_path / "values.yaml"))
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        return str(done.stdout.decode())

    assert run("apply").splitlines()[-1].endswith("/instantiate instantiated")
    group = "/projects/emco-charts/composite-apps/web/v1/deployment-intent-groups/g"
    rest = HttpClient(example)
    try:
        rest.until(f"{group}/status", lambda status: status["phase"] == "Running")
        status = rest.must(200, "GET", f"{group}/status?output=detail")
        (cluster,) = status["apps"][0]["clusters"]
        assert cluster["cluster"] == "edge-2", "its logical cloud has no other"
        resources = {r["name"]: r for r in cluster["resources"]}
        spec = resources["r1-nginx"]["detail"]["spec"]
        assert spec["replicas"] == 2
        assert spec["template"]["spec"]["containers"][0]["resources"] == {
            "requests": {"cpu": "1"},
            "limits": {"cpu": "1"},
        }
        assert [w["code"] for w in status["warnings"]].count("ApiVersionDiffers") == 1
        assert all(line.endswith(" unchanged") or "web.tgz" in line for line in run("apply").splitlines()[:-2])
    finally:
        run("delete")
    assert rest("GET", "/projects/emco-charts").status == 404


def test_chart_paths_are_refused_by_the_gateway(example: Mesh) -> None:
    """The gateway reads no files of clients."""
    body = yaml.safe_load(DOCUMENT.replace("VALUES", "{}"))
    with pytest.raises(urllib.error.HTTPError) as refusal:
        example.http("/v1/apply", body)
    assert refusal.value.code == 400 and b"NotInline" in refusal.value.read()
