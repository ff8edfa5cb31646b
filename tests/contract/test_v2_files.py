"""EMCO files, whose documents name their resources: applied in order, again without effect, deleted in reverse."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh

from .test_v2_example import manifests

VALUES = """
ProjectName: proj1
ClusterProvider: lab
Clusters: [edge-2, edge-3]
ClusterLabel: edge
CompositeApp: capp
Apps:
  - {name: fwall, file: fwall.yaml, consumer: core-fwall, kind: StatefulSet, container: palo-alto-e3000}
DeploymentIntent: dig
GenericPlacementIntent: gpi
AdminCloud: default-cloud
"""
PREREQUISITES = """
---
# controllers of the other system
version: emco/v2
resourceContext:
  anchor: controllers
metadata :
   name: rsync
spec:
  host: localhost
  port: 9031
---
version: emco/v2
resourceContext:
  anchor: projects
metadata :
   name: {{.ProjectName}}
---
version: emco/v2
resourceContext:
  anchor: cluster-providers
metadata :
   name: {{.ClusterProvider}}
{{- range $index, $cluster := .Clusters }}
---
version: emco/v2
resourceContext:
  anchor: cluster-providers/{{$.ClusterProvider}}/clusters
metadata :
   name: {{$cluster}}
file:
  kubeconfig.yaml
---
version: emco/v2
resourceContext:
  anchor: cluster-providers/{{$.ClusterProvider}}/clusters/{{$cluster}}/labels
clusterLabel: {{$.ClusterLabel}}
{{- end }}
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/logical-clouds
metadata:
  name: {{.AdminCloud}}
spec:
  level: "0"
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/logical-clouds/{{.AdminCloud}}/cluster-references
metadata:
  name: one
spec:
  clusterProvider: {{.ClusterProvider}}
  cluster: edge-3
  loadbalancerIp: "0.0.0.0"
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/logical-clouds/{{.AdminCloud}}/cluster-references
metadata:
  name: two
spec:
  clusterProvider: {{.ClusterProvider}}
  cluster: edge-2
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/logical-clouds/{{.AdminCloud}}/instantiate
"""
DEPLOYMENT = """
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/composite-apps
metadata :
  name: {{.CompositeApp}}
spec:
  compositeAppVersion: v1
{{- range .Apps }}
---
version: emco/v2
resourceContext:
  anchor: projects/{{$.ProjectName}}/composite-apps/{{$.CompositeApp}}/v1/apps
metadata :
  name: {{.name}}
file:
  {{.file}}
{{- end }}
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/composite-apps/{{.CompositeApp}}/v1/composite-profiles
metadata :
  name: profiles
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/composite-apps/{{.CompositeApp}}/v1/deployment-intent-groups
metadata :
  name: {{.DeploymentIntent}}
spec:
  compositeProfile: profiles
  version: r1
  logicalCloud: {{.AdminCloud}}
  overrideValues: []
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/composite-apps/{{.CompositeApp}}/v1/deployment-intent-groups/{{.DeploymentIntent}}/generic-placement-intents
metadata :
  name: {{.GenericPlacementIntent}}
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/composite-apps/{{.CompositeApp}}/v1/deployment-intent-groups/{{.DeploymentIntent}}/intents
metadata :
  name: map
spec:
  intent:
    genericPlacementIntent: {{.GenericPlacementIntent}}
{{- range .Apps }}
---
version: emco/v2
resourceContext:
  anchor: projects/{{$.ProjectName}}/composite-apps/{{$.CompositeApp}}/v1/deployment-intent-groups/{{$.DeploymentIntent}}/generic-placement-intents/{{$.GenericPlacementIntent}}/app-intents
metadata :
  name: {{.name}}-placement
spec:
  app: {{.name}}
  intent:
    allOf:
      - clusterProvider: {{$.ClusterProvider}}
        clusterLabel: {{$.ClusterLabel}}
---
version: emco/v2
resourceContext:
  anchor: projects/{{$.ProjectName}}/composite-apps/{{$.CompositeApp}}/v1/deployment-intent-groups/{{$.DeploymentIntent}}/hpa-intents
metadata :
  name: {{.name}}-hpa
spec:
  app-name: {{.name}}
---
version: emco/v2
resourceContext:
  anchor: projects/{{$.ProjectName}}/composite-apps/{{$.CompositeApp}}/v1/deployment-intent-groups/{{$.DeploymentIntent}}/hpa-intents/{{.name}}-hpa/hpa-resource-consumers
metadata :
  name: {{.consumer}}
spec:
  apiVersion: apps/v1
  kind: {{.kind}}
  name: {{.consumer}}
  container-name: {{.container}}
---
version: emco/v2
resourceContext:
  anchor: projects/{{$.ProjectName}}/composite-apps/{{$.CompositeApp}}/v1/deployment-intent-groups/{{$.DeploymentIntent}}/hpa-intents/{{.name}}-hpa/hpa-resource-consumers/{{.consumer}}/resource-requirements
metadata :
  name: cpu
spec:
  allocatable: true
  mandatory: true
  weight: 1
  resource: {"name": "cpu", "requests": 1, "limits": 1}
{{- end }}
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/composite-apps/{{.CompositeApp}}/v1/deployment-intent-groups/{{.DeploymentIntent}}/approve
---
version: emco/v2
resourceContext:
  anchor: projects/{{.ProjectName}}/composite-apps/{{.CompositeApp}}/v1/deployment-intent-groups/{{.DeploymentIntent}}/instantiate
"""
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: u, user: {token: hush-hush}}]
"""
GROUP = "/projects/proj1/composite-apps/capp/v1/deployment-intent-groups/dig"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "values.yaml").write_text(VALUES)
    (tmp_path / "prerequisites.yaml").write_text(PREREQUISITES)
    (tmp_path / "deployment.yaml").write_text(DEPLOYMENT)
    (tmp_path / "kubeconfig.yaml").write_text(KUBECONFIG)
    (tmp_path / "fwall.yaml").write_text(yaml.safe_dump_all(manifests()["fwall"]))
    return tmp_path


def test_files_are_applied_in_order_and_deleted_in_reverse(fleet_mesh: Mesh, files: Path) -> None:
    rest = HttpClient(fleet_mesh)

    def run(verb: str, code: int = 0) -> list[str]:
        done: subprocess.CompletedProcess[bytes] = fleet_mesh.run(
            verb,
            *("-f", str(files / "prerequisites.yaml"), "-f", str(files / "deployment.yaml")),
            *("-v", str(files / "values.yaml")),
        )
        assert done.returncode == code, done.stdout.decode() + done.stderr.decode()
        return done.stdout.decode().splitlines()

    lines = run("apply")
    assert lines[0] == "controllers/rsync created"
    assert "projects/proj1/composite-apps/capp/v1 created" in lines
    assert lines[-1].endswith("dig/instantiate instantiated")
    status = rest.until(GROUP + "/status", lambda s: s["phase"] == "Running")
    (app,) = status["apps"]
    # allOf by label: every cluster that has it.
    assert sorted(c["cluster"] for c in app["clusters"]) == ["edge-2", "edge-3"]
    assert "hush-hush" not in str(rest.must(200, "GET", "/cluster-providers/lab/clusters/edge-2"))
    file = rest("GET", "/cluster-providers/lab/clusters/edge-2", Accept="application/octet-stream")
    assert file.status == 404, "what is secret is not given back"

    again = run("apply")
    assert [line for line in again if not line.endswith(" unchanged") and "instantiate" not in line] == []
    assert rest.must(200, "GET", GROUP + "/status")["revision"] == status["revision"]

    gone = run("delete")
    assert gone[0] == GROUP[1:] + " terminated"
    assert gone[-1] == "controllers/rsync deleted"
    assert rest("GET", "/projects/proj1").status == 404
    assert "projects/proj1 not found" in run("delete")


def test_a_template_needs_its_values(fleet_mesh: Mesh, files: Path) -> None:
    done = fleet_mesh.run("apply", "-f", str(files / "deployment.yaml"))
    assert done.returncode == 2
    assert b"-v values.yaml" in done.stderr
    (files / "few.yaml").write_text("ProjectName: p\n")
    done = fleet_mesh.run("apply", "-f", str(files / "prerequisites.yaml"), "-v", str(files / "few.yaml"))
    assert done.returncode == 1
    assert b"no value for .ClusterProvider" in done.stderr


def test_networks_are_refused_and_other_documents_applied(fleet_mesh: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "networks.yaml"
    file.write_text(
        "version: emco/v2\nresourceContext: {anchor: cluster-providers/lab/clusters/edge-1/networks}\n"
        "metadata: {name: n}\n---\n"
        "version: emco/v2\nresourceContext: {anchor: projects}\nmetadata: {name: after-networks}\n"
    )
    done = fleet_mesh.run("apply", "-f", str(file))
    assert done.returncode == 1
    assert b"networks" in done.stderr.lower()
    assert done.stdout == b"projects/after-networks created\n"
