"""The container of the DaemonSet, with its arguments, mounts and rights, beside a real containerd and a real API server."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from moorage_testkit import kube_assets
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.polling import until

from .agent_process import AgentProcess
from .containerd import Containerd, cgroup_file
from .cri_client import CriClient
from .fake_plugin import FakePlugin
from .machines import pod, write_policy
from .test_real_runtimes import eventually

OPS = Path(__file__).parents[2] / "ops" / "node"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/moorage-system/serviceaccounts",
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
}
#: Lays empty directories over those of the machine that the container has for itself, so that mount points can be made there.
_BEGIN = """\
set -e
for place in /run /var/lib; do mount -t tmpfs tmpfs $place; done
mkdir -p /run/etc/upper /run/etc/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work /etc
"""


def can_mount() -> bool:
    """Returns whether this machine lets a test make mounts of its own."""
    try:
        done = subprocess.run(
            [
                "unshare",
                "-m",
                "--propagation",
                "private",
                "sh",
                "-c",
                f"{_BEGIN}mount -o remount,ro,bind / && setpriv -V",
            ],
            capture_output=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    if kube_assets.find()[0] is None:
        pytest.skip(kube_assets.find()[1])
    if not can_mount():
        pytest.skip("mounts cannot be made on this machine")
    plane = ControlPlane("daemon")
    try:
        plane.begin()
        plane.until(plane.ready, 120, "kube-apiserver")
        for document in yaml.safe_load_all((OPS / "rights.yaml").read_text()):
            plane.call("POST", _PATHS[document["kind"]], document)
        plane.call("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        plane.node("n1")
        yield plane
    finally:
        plane.remove()


def daemon_set() -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the container of the DaemonSet, and the paths on the node by the names of volumes."""
    (document,) = yaml.safe_load_all((OPS / "daemonset.yaml").read_text())
    spec = document["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return container, {volume["name"]: volume.get("hostPath", {}).get("path", "") for volume in spec["volumes"]}


def script(container: dict[str, Any], sources: dict[str, Path]) -> str:
    """Returns what runs the container's command in mounts of its own, with its rights and no others. `sources`: by volume."""
    lines = [_BEGIN]
    for mount in [*container["volumeMounts"], {"name": "account", "mountPath": ACCOUNT, "readOnly": True}]:
        place, source = shlex.quote(mount["mountPath"]), shlex.quote(str(sources[mount["name"]]))
        lines.append(f"mkdir -p {place}; mount --rbind {source} {place}")
        if mount.get("readOnly"):
            lines.append(f"mount -o remount,ro,bind {place}")
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"] and rights["runAsUser"] == 0 and not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"]["drop"] == ["ALL"]
    kept = ",".join(f"+{name.lower()}" for name in rights["capabilities"]["add"])
    command = [sys.executable, "-m", "moorage.cli", *(word.replace("$(NODE)", "n1") for word in container["args"])]
    lines.append("mount -o remount,ro,bind /")
    lines.append(f"exec setpriv --no-new-privs --inh-caps -all --bounding-set -all,{kept} {shlex.join(command)}")
    return "\n".join(lines)


class Daemon(AgentProcess):
    """The agent, started as the DaemonSet does."""

    def __init__(self, root: Path, text: str, environment: dict[str, str]) -> None:
        super().__init__(root, environment=environment)
        self._text = text

    async def start(self, *more: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *("unshare", "-m", "--propagation", "private", "sh", "-c", self._text),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._environment},
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.ready = (await asyncio.wait_for(self.process.stdout.readline(), 120)).decode().strip()
        if not self.ready.startswith("ready"):
            raise AssertionError((await self.process.stderr.read()).decode())


@pytest_asyncio.fixture
async def daemon(plane: ControlPlane, nri_containerd: Containerd, tmp_path: Path) -> AsyncIterator[Daemon]:
    container, hosts = daemon_set()
    account, runtime, policy = tmp_path / "account", tmp_path / "runtime", tmp_path / "policy"
    state, kubelet = nri_containerd.directory / "n", tmp_path / "kubelet"
    for directory in (account, runtime, policy, state, kubelet):
        directory.mkdir()
    token = plane.call("POST", f"{_PATHS['ServiceAccount']}/moorage-node/token", {"spec": {}})
    (account / "token").write_text(json.loads(token)["status"]["token"])
    (account / "ca.crt").write_bytes((plane.directory / "certs" / "apiserver.crt").read_bytes())
    (runtime / "containerd.sock").symlink_to(nri_containerd.socket)
    pools = {"online": {"cpus": "0", "default": True}, "offline": {"cpus": "1"}}
    write_policy(policy / "policy.yaml", pools=pools)
    sources = {name: Path(path) for name, path in hosts.items()} | {
        "state": state,
        "nri": nri_containerd.nri_socket.parent,
        "runtime": runtime,
        "kubelet": kubelet,
        "policy": policy,
        "account": account,
    }
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(plane.port)}
    daemon = Daemon(state, script(container, sources), environment)
    await daemon.start()
    yield daemon
    await daemon.stop()


async def test_the_container_of_the_daemon_set_pins_pods(
    plane: ControlPlane, nri_containerd: Containerd, daemon: Daemon
) -> None:
    manifest = pod("etl", "ETL", "100m", "64Mi")
    manifest["spec"]["nodeName"] = "n1"
    manifest["spec"]["containers"][0]["image"] = "image"
    del manifest["metadata"]["uid"]
    made = await asyncio.to_thread(plane.call, "POST", "/api/v1/namespaces/default/pods", manifest)
    uid = json.loads(made)["metadata"]["uid"]
    client = CriClient(str(nri_containerd.socket), nri_containerd.cgroup_parent)
    try:
        async with asyncio.timeout(120):
            while not (await daemon.ask("status"))["ready"]:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.1)
        container = await client.run("etl", uid, manifest["metadata"]["annotations"])
        cpuset = cgroup_file(await client.pid(container), "cpuset", "cpuset.cpus")
        assert cpuset.read_text().strip() == "1"
        assert [item["pod"] for item in await daemon.ask("allocations")] == ["default/etl"]
        # The rights are enough to write what a plugin gives out to the status of the node.
        plugin = FakePlugin()
        await plugin.start(daemon.root / "plugins_registry" / "p.sock")

        def told() -> bool:
            return "example.com/tokens" in plane.get("/api/v1/nodes/n1")["status"]["capacity"]

        await until(told)

        async def is_well() -> bool:
            return bool(await daemon.ask("check") == [])

        await eventually(is_well)
    finally:
        await client.close()
