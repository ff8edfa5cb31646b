"""Runs real control planes: etcd, API server, scheduler, controller manager, and kwok in place of kubelets."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import msgspec

from .kube_assets import find, kwok
from .kwok_stages import STAGES
from .resource import Resource
from .servers import data_directory, free_port

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


#: PR_SET_PDEATHSIG kills a child when the thread that started it ends, so one thread that lives on starts all of them.
_launcher = ThreadPoolExecutor(1, "control-planes")


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(command: list[str], out: IO[bytes], directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=out, stderr=out, cwd=directory, preexec_fn=_die_with_parent)  # noqa: PLW1509


class ControlPlane(Resource):
    """One cluster. Its `kubeconfig` is the administrator's; service accounts work."""

    def __init__(self, name: str = "test", *, scheduler: bool = True, arguments: Sequence[str] = ()) -> None:
        assets, why = find()
        if assets is None:
            raise RuntimeError(why)
        self.name = name
        self._assets = assets
        self._scheduler = scheduler
        self._arguments = arguments  # more of the API server
        self.directory = data_directory(f"moorage-kube-{name}-")
        self.kubeconfig = self.directory / "kubeconfig"
        self.token = secrets.token_hex(16)
        self._etcd, self._peer, self.port = free_port(), free_port(), free_port()
        self._others = [free_port() for _ in range(3)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.begin()
        self.finish()

    def begin(self) -> None:
        """Starts etcd and the API server without waiting, so that several clusters start at once."""
        self._write()
        self._start_etcd()
        self._run_server()

    def finish(self) -> None:
        self.until(self.ready, 100, "kube-apiserver")
        config = ["--kubeconfig", str(self.kubeconfig)]
        scheduler, controllers, kubelets = self._others
        if self._scheduler:
            self._run(
                "kube-scheduler",
                *config,
                "--leader-elect=false",
                f"--secure-port={scheduler}",
                "--bind-address=127.0.0.1",
            )
        self._run(
            "kube-controller-manager",
            *config,
            "--leader-elect=false",
            f"--secure-port={controllers}",
            "--bind-address=127.0.0.1",
            f"--service-account-private-key-file={self.directory}/sa.key",
            "--node-monitor-grace-period=2h",
            "--node-monitor-period=1s",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )
        self._run(
            "kwok", *config, "--manage-all-nodes=true", "--config", str(self.directory / "stages.yaml"),
            f"--server-address=127.0.0.1:{kubelets}", "--node-lease-duration-seconds=0",
        )  # fmt: skip

    def _write(self) -> None:
        key = self.directory / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        public = ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(self.directory / "sa.pub")]
        subprocess.run(public, check=True, capture_output=True)
        (self.directory / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
        (self.directory / "stages.yaml").write_text(STAGES)
        self.kubeconfig.write_bytes(msgspec.json.encode(self.config()))

    def config(self, token: str = "", port: int = 0) -> dict[str, Any]:
        """Returns a kubeconfig whose context has this cluster's name."""
        cluster = {"server": f"https://127.0.0.1:{port or self.port}", "insecure-skip-tls-verify": True}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": self.name, "cluster": cluster}],
            "users": [{"name": self.name, "user": {"token": token or self.token}}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": self.name}}],
            "current-context": self.name,
        }

    def _run(self, program: str, *arguments: str) -> None:
        binary = kwok(self._assets) if program == "kwok" else self._assets / program
        with (self.directory / f"{program}.log").open("ab") as out:
            command = [str(binary), *arguments]
            self.processes[program] = _launcher.submit(_start, command, out, self.directory).result()

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        self._run(
            "etcd", "--data-dir", str(self.directory / "etcd"), "--unsafe-no-fsync", "--log-level=error",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        )  # fmt: skip

    def start_server(self) -> None:
        """Starts the API server and waits until it is ready."""
        self._run_server()
        self.until(self.ready, 100, "kube-apiserver")

    def _run_server(self) -> None:
        keys = self.directory
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            f"--secure-port={self.port}",
            f"--cert-dir={keys}/certs",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={keys}/sa.pub",
            f"--service-account-signing-key-file={keys}/sa.key",
            f"--token-auth-file={keys}/tokens.csv",
            *self._arguments,
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--endpoint-reconciler-type=none",
            "--max-requests-inflight=1500",
            "--max-mutating-requests-inflight=800",
        )

    def stop_server(self, number: int = signal.SIGKILL) -> None:
        process = self.processes.pop("kube-apiserver")
        process.send_signal(number)
        process.wait(90)

    def pause_server(self) -> None:
        """Stops the API server's process; its connections stay open and silent."""
        self.processes["kube-apiserver"].send_signal(signal.SIGSTOP)

    def resume_server(self) -> None:
        self.processes["kube-apiserver"].send_signal(signal.SIGCONT)

    def until(self, ready: Callable[[], bool], seconds: float, program: str) -> None:
        end = time.monotonic() + seconds
        while not ready():
            if self.processes[program].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{program} of {self.name} does not get ready:\n{self.log(program)[-3000:]}")
            time.sleep(0.05)

    def log(self, program: str) -> str:
        return (self.directory / f"{program}.log").read_text(errors="replace")

    def ready(self) -> bool:
        with contextlib.suppress(OSError, urllib.error.URLError):
            return self.call("GET", "/readyz") == b"ok"
        return False

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> bytes:
        """Sends a request as the administrator; blocks."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else msgspec.json.encode(body),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": content_type},
        )
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        with urllib.request.urlopen(request, timeout=60, context=tls) as response:
            data: bytes = response.read()
            return data

    def get(self, path: str) -> Any:
        return msgspec.json.decode(self.call("GET", path))

    def node(
        self,
        name: str,
        *,
        allocatable: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        taints: list[dict[str, str]] | None = None,
    ) -> None:
        """Creates a node, which kwok makes ready."""
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", **(allocatable or {})}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "spec": {"taints": taints or []},
            "status": {"allocatable": amounts, "capacity": amounts},
        }
        self.call("POST", "/api/v1/nodes", node)

    def service_account(self, name: str, rules: list[dict[str, Any]]) -> Path:
        """Creates a service account with these rules in all namespaces and returns its kubeconfig. Rules may name API groups
        that do not exist."""
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        meta = {"metadata": {"name": name}}
        for path, body in (
            ("/api/v1/namespaces/default/serviceaccounts", meta),
            (f"{rbac}/clusterroles", {**meta, "rules": rules}),
            (f"{rbac}/clusterrolebindings", {**meta, "roleRef": role, "subjects": [subject]}),
        ):
            self.call("POST", path, body)
        made = self.call("POST", f"/api/v1/namespaces/default/serviceaccounts/{name}/token", {"spec": {}})
        file = self.directory / f"{name}.kubeconfig"
        file.write_bytes(msgspec.json.encode(self.config(msgspec.json.decode(made)["status"]["token"])))
        return file

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self.processes.values():
            process.wait(60)
        self.processes = {}

    def remove(self) -> None:
        self.stop()
        if not os.environ.get("MOORAGE_KEEP"):
            shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def control_planes(*names: str, scheduler: bool = True) -> Iterator[list[ControlPlane]]:
    """Runs several clusters. They start together, which takes little longer than one."""
    made = [ControlPlane(name, scheduler=scheduler) for name in names]
    try:
        for plane in made:
            plane.begin()
        for plane in made:
            plane.finish()
        yield made
    finally:
        for plane in made:
            plane.remove()
