"""Runs a private containerd, with its own directory, socket and cgroup, and an image that is made in memory."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import tarfile
import time
from pathlib import Path

import grpc
import grpc.aio

from moorage.node import grpc_unix
from moorage.node.api import cri_pb2 as cri

IMAGE = "node.test/pause:1"
_CONFIG = """\
version = 2
root = "{root}/root"
state = "{root}/state"
oom_score = 0
[grpc]
  address = "{root}/c.sock"
[ttrpc]
  address = "{root}/t.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "node.test/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{root}/empty"
    conf_dir = "{root}/empty"
"""
_NRI = """\
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{root}/nri.sock"
  plugin_path = "{root}/empty"
  plugin_config_path = "{root}/empty"
"""
CGROUPS = Path("/sys/fs/cgroup")


#: Machine code for x86-64 by the program's name: one waits for signals for ever, the others end with 0 and 1 at once.
_PROGRAMS = {"pause": "b8220000000f05ebf7", "exit0": "bf00000000b83c0000000f05", "exit1": "bf01000000b83c0000000f05"}


def _program(code: bytes) -> bytes:
    """Returns a program of this machine code."""
    base, offset = 0x400000, 64 + 56
    identity = b"\x7fELF" + bytes([2, 1, 1, 0]) + b"\0" * 8
    header = struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + offset, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    size = offset + len(code)
    return identity + header + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000) + code


def _archive(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.rstrip("/"))
            entry.mode, entry.size = mode, len(content)
            if name.endswith("/"):
                entry.type = tarfile.DIRTYPE
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def image() -> bytes:
    """Returns an image with these programs as `ctr images import` reads it."""
    directories = {f"{name}/": b"" for name in ("proc", "sys", "dev", "etc", "tmp")}
    programs = {name: _program(bytes.fromhex(code)) for name, code in _PROGRAMS.items()}
    layer = _archive({**directories, **programs}, 0o755)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": "a test"}],
        }
    ).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": name, "RepoTags": [IMAGE], "Layers": [f"{digest}/layer.tar"]}]).encode()
    return _archive({name: config, f"{digest}/layer.tar": layer, "manifest.json": manifest}, 0o644)


class Containerd:
    """A private containerd in a directory with a short path."""

    def __init__(self, programs: Path, directory: Path, *, nri: bool = False) -> None:
        self._programs, self.directory = programs, directory
        self.socket, self.nri_socket = directory / "c.sock", directory / "nri.sock"
        #: The parent of all cgroups, as sandboxes name it.
        self.cgroup_parent = f"/moorage-{os.getpid()}-{directory.name}"
        self.process: subprocess.Popen[bytes] | None = None
        (directory / "empty").mkdir(parents=True, exist_ok=True)
        config = (_CONFIG + (_NRI if nri else "")).format(root=directory)
        (directory / "config.toml").write_text(config)

    async def start(self) -> None:
        self.process = self._spawn()
        until = time.monotonic() + 120
        async with grpc_unix.channel(str(self.socket)) as channel:
            status = channel.unary_unary("/runtime.v1.RuntimeService/Status")
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    answer = cri.StatusResponse.FromString(await status(b"", timeout=5))
                    if any(c.type == "RuntimeReady" and c.status for c in answer.status.conditions):
                        break
                if time.monotonic() > until or self.process.poll() is not None:
                    raise AssertionError((self.directory / "log").read_text()[-4000:])
                await asyncio.sleep(0.05)

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PATH": f"{self._programs}:{os.environ.get('PATH', '')}"}
        with (self.directory / "log").open("ab") as output:
            return subprocess.Popen(
                [self._programs / "containerd", "-c", self.directory / "config.toml"],
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    async def import_image(self) -> None:
        archive = self.directory / "image.tar"
        archive.write_bytes(image())
        command = [
            str(self._programs / "ctr"),
            "-a",
            str(self.socket),
            "-n",
            "k8s.io",
            "images",
            "import",
            str(archive),
        ]
        done = await asyncio.to_thread(
            lambda: subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        )
        assert done.returncode == 0, done.stderr
        async with grpc_unix.channel(str(self.socket)) as channel:
            ask = channel.unary_unary("/runtime.v1.ImageService/ImageStatus")
            request = cri.ImageStatusRequest(image=cri.ImageSpec(image=IMAGE)).SerializeToString()
            while not cri.ImageStatusResponse.FromString(await ask(request)).image.id:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        """Kills the daemon; its containers run on."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    async def remove_all(self) -> None:
        """Removes all sandboxes with their containers."""
        async with grpc_unix.channel(str(self.socket)) as channel:

            async def call(method: str, request: bytes = b"") -> bytes:
                answer: bytes = await channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")(request, timeout=60)
                return answer

            for sandbox in cri.ListPodSandboxResponse.FromString(await call("ListPodSandbox")).items:
                request = cri.PodSandboxIdRequest(pod_sandbox_id=sandbox.id).SerializeToString()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await call("StopPodSandbox", request)
                    await call("RemovePodSandbox", request)

    async def stop(self) -> None:
        if self.process is None:
            await self.start()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self.remove_all()
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        self._clean()

    def _clean(self) -> None:
        for parent in CGROUPS.glob(f"*{self.cgroup_parent}"):
            for place, _, _ in os.walk(parent, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(place)
        shutil.rmtree(self.directory, ignore_errors=True)


def cgroup_file(pid: int, controller: str, name: str) -> Path:
    """Returns a file of the cgroup that a process is in, of version 1 or 2."""
    found = ""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return CGROUPS / controller / path.lstrip("/") / name
        if not controllers:
            found = path
    return CGROUPS / found.lstrip("/") / name
