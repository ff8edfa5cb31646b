"""compose.yaml, ops/kubernetes, ops/monitoring and the command line name the same workers and run them with the same rights."""

from __future__ import annotations

import io
import re
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorage.cli.kubernetes_manifests import FILES, METRICS, USER, files
from moorage.cli.main import run
from moorage.mesh.discovery import installed

TOP = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((TOP / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
BROKERS, ONCE = {"nats", "redis"}, {"keys", "provision"}
AGENTS = {name for name, one in SERVICES.items() if one["command"][:2] == ["fleet", "sim"]}


def test_the_manifests_in_ops_are_those_the_code_generates() -> None:
    """`python -m moorage.cli.kubernetes_manifests ops/kubernetes` writes them."""
    files_in_ops = {path.name: path.read_text() for path in (TOP / "ops/kubernetes").glob("*.yaml")}
    assert files_in_ops == files()


def test_compose_kubernetes_and_the_command_line_have_every_worker() -> None:
    in_compose = {name for name, one in SERVICES.items() if one["command"][0] == "run"}
    deployed = yaml.safe_load_all((TOP / "ops/kubernetes/workers.yaml").read_text())
    on_kubernetes = {one["metadata"]["name"] for one in deployed if one["kind"] == "Deployment"}
    workers = set(installed().workers)
    assert in_compose == workers, f"compose.yaml lacks the services {workers - in_compose}"
    assert on_kubernetes == workers, f"ops/kubernetes/workers.yaml lacks the Deployments {workers - on_kubernetes}"
    with redirect_stdout(io.StringIO()) as stdout:
        run(["run", "--help"])
    help_text = re.sub(r"[\s│|]+", " ", stdout.getvalue())
    assert f"{', '.join(installed().workers)}, or a Python file" in help_text
    assert all(SERVICES[name]["command"] == ["run", name] for name in in_compose)
    scraping = yaml.safe_load((TOP / "ops/monitoring/prometheus.yaml").read_text())
    targets = {t for job in scraping["scrape_configs"] for some in job["static_configs"] for t in some["targets"]}
    missing = {f"{name}:{METRICS}" for name in in_compose | AGENTS} - targets
    assert not missing, f"ops/monitoring/prometheus.yaml lacks the targets {missing}"


@pytest.mark.parametrize("name", SERVICES)
def test_containers_have_the_least_privileges(name: str) -> None:
    one = SERVICES[name]
    assert one["user"] == f"{USER}:{USER}" and one["read_only"] is True
    assert one["cap_drop"] == ["ALL"] and one["security_opt"] == ["no-new-privileges:true"]
    assert not one.keys() & {"privileged", "cap_add", "devices", "pid", "ipc", "network_mode"} - {"network_mode"}
    assert one.get("network_mode", "none") == "none"
    if name in ONCE:
        return
    assert one["restart"] == "unless-stopped" and one["healthcheck"]["test"]
    assert one["depends_on"]
    assert list(one.get("ports", ())) == ([one["ports"][0]] if name == "gateway" else [])
    keys = [volume for volume in one["volumes"] if volume.startswith("key-")]
    assert keys == [f"key-{name}:/run/moorage:ro"]


def test_the_published_port_is_for_this_machine() -> None:
    assert SERVICES["gateway"]["ports"] == ["${MOORAGE_LISTEN:-127.0.0.1:7070}:7070"]


def test_every_key_has_a_volume_that_its_user_can_write_once() -> None:
    """The image has a directory for each, owned by the user: a fresh volume takes the owner over."""
    mounts = dict(volume.split(":") for volume in SERVICES["keys"]["volumes"])
    assert set(COMPOSE["volumes"]) == mounts.keys()
    directories = {path.removeprefix("/var/lib/moorage/keys/") for name, path in mounts.items() if name != "nats"}
    clusters = SERVICES["keys"]["command"][3:]
    agents = {f"agent.{cluster.replace('/', '.')}" for cluster in clusters}
    users = {*installed().users, *BROKERS, *agents}
    assert directories == users, f"the service keys of compose.yaml lacks the volumes {users - directories}"
    named = re.search(r"mkdir nats redis ((?:agent\.\S+ )+)", (TOP / "ops/image/Dockerfile").read_text())
    assert named and set(named[1].split()) == agents
    assert {SERVICES[name]["environment"]["MOORAGE_CLUSTER"] for name in AGENTS} == set(clusters)


def test_kubernetes_gives_each_pod_its_own_keys() -> None:
    kustomization = yaml.safe_load((TOP / "ops/kubernetes/kustomization.yaml").read_text())
    generated = {one["name"]: one["files"] for one in kustomization["secretGenerator"]}
    used: set[str] = set()
    for file in kustomization["resources"]:
        for one in yaml.safe_load_all((TOP / "ops/kubernetes" / file).read_text()):
            template = one.get("spec", {}).get("template")
            if template is None:
                continue
            spec = template["spec"]
            assert spec["automountServiceAccountToken"] is False
            (secret,) = [v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v]
            name = one["metadata"]["name"]
            assert secret == ("moorage-admin" if name == "provision" else f"moorage-{name}")
            used.add(secret)
            if one["kind"] == "Deployment" and name in installed().workers:
                (container,) = spec["containers"]
                assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
                assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert used == generated.keys()
    assert generated["moorage-gateway"] == [f"keys/gateway/{file}" for file in FILES["gateway"]]


def test_the_generated_secrets_are_files_that_bus_config_writes(tmp_path: Path) -> None:
    kustomization = yaml.safe_load((TOP / "ops/kubernetes/kustomization.yaml").read_text())
    assert run(["bus", "config", str(tmp_path / "keys"), "lab/edge-1"]) == 0
    for one in kustomization["secretGenerator"]:
        assert all((tmp_path / file).is_file() for file in one["files"]), one
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in before)
    assert run(["bus", "config", str(tmp_path / "keys"), "lab/edge-1"]) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, "keys are kept"


def test_every_lock_has_all_packages_of_the_plain_one() -> None:
    """The image is built from the lock with tracing, the tests run with that of developers."""

    def packages(name: str) -> set[str]:
        return {line.split(";")[0].strip() for line in (TOP / name).read_text().splitlines()}

    plain = packages("requirements.lock")
    assert plain <= packages("requirements-traces.lock")
    assert plain <= packages("requirements-dev.lock")
    names = {package.partition("==")[0] for package in plain}
    declared = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[\[><=;]", one)[0] for one in declared} <= names
