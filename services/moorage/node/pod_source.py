"""Knows the pods of the node by their manifests, and reads those of a directory."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog

from moorage.model.problems import Refused
from moorage.parsing.yaml_json import parse_documents
from moorage.qos.messages import PodSpec
from moorage.qos.pods import CONFIG_HASH

from .inotify import DirectoryWatch, visible
from .pod_objects import KnownPod, known_pod

log = structlog.get_logger("node")

#: The largest manifest file that is read, and seconds after which changes of the directory are read.
MAX_MANIFEST, SETTLE = 1 << 20, 0.02


#: Namespace and name of a pod.
Name = tuple[str, str]


class PodSource:
    """The manifests of the node's pods by the uid that the runtime uses. `listed` is set once all are known: until then a pod
    that is missing here may still exist."""

    def __init__(self, changed: Callable[[str], None] = lambda uid: None, *, static: bool = False) -> None:
        """`static`: the manifests are those from which a kubelet makes static pods."""
        self._pods: dict[str, KnownPod] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        #: Static pods, by namespace and name: their manifests, and the uids that the kubelet made up for them.
        self._has_static = static
        self._static: dict[Name, KnownPod] = {}
        self._static_uids: dict[Name, set[str]] = {}
        self._changed = changed
        self.listed = asyncio.Event()

    def get(self, uid: str) -> KnownPod | None:
        return self._pods.get(uid)

    def all(self) -> Iterable[KnownPod]:
        return self._pods.values()

    def is_gone(self, uid: str) -> bool:
        """Returns whether the pod is certainly no more: all pods are known, and it is not among them."""
        return self.listed.is_set() and uid not in self._pods

    async def wait(self, uid: str, seconds: float) -> KnownPod | None:
        """Returns the pod once its manifest is known; None if that takes longer. The kubelet may hear of a pod before us."""
        if (found := self._pods.get(uid)) is not None:
            return found
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, []).append(future)
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return None
        finally:
            waiting = self._waiting.get(uid, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiting.pop(uid, None)
        return self._pods.get(uid)

    def put(self, pod: KnownPod) -> None:
        uid = pod.spec.uid
        if self._pods.get(uid) == pod:
            return
        self._pods[uid] = pod
        for future in self._waiting.get(uid, ()):
            if not future.done():
                future.set_result(None)
        self._changed(uid)

    def drop(self, uid: str) -> None:
        if self._pods.pop(uid, None) is not None:
            self._changed(uid)

    def set_static(self, pods: Mapping[Name, KnownPod]) -> None:
        """Takes the manifests of all static pods. One that has changed is another pod, with another uid, to the kubelet."""
        before, self._static = self._static, dict(pods)
        for name in [name for name, pod in before.items() if pods.get(name) != pod]:
            for uid in self._static_uids.pop(name, ()):
                self.drop(uid)
        for name, pod in self._static.items():
            for uid in self._static_uids.get(name, ()):
                self._put_static(uid, pod)

    def name_static(self, told: PodSpec) -> None:
        """Hears from the runtime under which uid a static pod runs."""
        if self._has_static and CONFIG_HASH in told.annotations and told.uid not in self._pods:
            name = (told.namespace, told.name)
            self._static_uids.setdefault(name, set()).add(told.uid)
            if (pod := self._static.get(name)) is not None:
                self._put_static(told.uid, pod)

    def _put_static(self, uid: str, pod: KnownPod) -> None:
        self.put(pod._replace(spec=msgspec.structs.replace(pod.spec, uid=uid)))


class Manifest(NamedTuple):
    """A pod of a directory: as it is admitted, and as it is written, where the agent runs it."""

    pod: KnownPod
    data: dict[str, Any]
    has_uid: bool = True


class _File(NamedTuple):
    """A file of manifests as it was read: its inode, time and size, and why a part of it is not used."""

    state: tuple[int, int, int]
    manifests: dict[str, Manifest]
    problem: str


class ManifestDirectory:
    """The pods whose manifests are in a directory, one or several a file, in YAML or JSON. `kubelet`: the name of the node whose
    kubelet runs them, as static pods; "" where the agent does."""

    def __init__(self, directory: Path, source: PodSource, kubelet: str = "") -> None:
        self._directory, self._source, self._kubelet = directory, source, kubelet
        self.manifests: dict[str, Manifest] = {}
        self._files: dict[Path, _File] = {}
        self._dirty = asyncio.Event()
        self.read = asyncio.Event()  # once

    async def run(self) -> None:
        """Follows the directory, for ever."""
        watch = DirectoryWatch(self._directory, self._dirty.set)
        try:
            while True:
                self._dirty.clear()  # before the files are read: what changes meanwhile is read again
                if await asyncio.to_thread(self._read) or not self._source.listed.is_set():
                    self._take({uid: found for file in self._files.values() for uid, found in file.manifests.items()})
                self._source.listed.set()
                self.read.set()
                try:
                    await asyncio.wait_for(self._dirty.wait(), 30.0)
                    await asyncio.sleep(SETTLE)
                except TimeoutError:
                    continue
        finally:
            watch.close()

    def _read(self) -> bool:
        """Reads files that are new or changed, and returns whether there were any, or some are gone."""
        found: dict[Path, _File] = {}
        for path in visible(self._directory):
            if path.suffix not in (".yaml", ".yml", ".json"):
                continue
            try:
                state = path.stat()
            except OSError:
                continue
            before, now = self._files.get(path), (state.st_ino, state.st_mtime_ns, state.st_size)
            found[path] = before if before is not None and before.state == now else self._read_file(path, now)
        changed = found != self._files
        self._files = found
        return changed

    def _read_file(self, path: Path, state: tuple[int, int, int]) -> _File:
        manifests: dict[str, Manifest] = {}
        try:
            with path.open("rb") as file:
                text = file.read(MAX_MANIFEST + 1)
            for data in parse_documents(text, max_bytes=MAX_MANIFEST):
                manifest = read_manifest(data)
                # A kubelet has what else stands in its manifests.
                manifests[manifest.pod.spec.uid] = manifest._replace(data={}) if self._kubelet else manifest
        except (OSError, Refused, ValueError) as error:
            log.warning("a manifest is not used", file=path.name, error=str(error))
            return _File(state, manifests, str(error))
        return _File(state, manifests, "")

    @property
    def problems(self) -> dict[str, str]:
        """Returns files that are not used or not used whole, with why."""
        return {path.name: file.problem for path, file in self._files.items() if file.problem}

    def end(self, uid: str) -> None:
        """Hears that all containers of a pod have ended for good: what it has is taken back."""
        if (manifest := self.manifests.get(uid)) is not None:
            self._source.put(manifest.pod._replace(ended=True))

    def _take(self, found: dict[str, Manifest]) -> None:
        for uid in self.manifests.keys() - found.keys():
            self._source.drop(uid)
        self.manifests = found
        static: dict[Name, KnownPod] = {}
        for manifest in found.values():
            if manifest.has_uid or not self._kubelet:
                known = self._source.get(manifest.pod.spec.uid)
                ended = known is not None and known.ended and known.spec == manifest.pod.spec
                self._source.put(manifest.pod._replace(ended=manifest.pod.ended or ended))
                continue
            spec = manifest.pod.spec
            name = f"{spec.name}-{self._kubelet.lower()}"
            static[spec.namespace, name] = manifest.pod._replace(spec=msgspec.structs.replace(spec, name=name))
        self._source.set_static(static)


def read_manifest(data: Any) -> Manifest:
    """Reads a pod that is plain data. Without a uid it gets one from its content, so that a changed manifest is a new pod."""
    if not isinstance(data, dict) or data.get("kind", "Pod") != "Pod":
        raise ValueError("a manifest is a Pod")
    metadata = data.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise ValueError("a Pod needs metadata.name")
    has_uid = bool(metadata.get("uid"))
    if not has_uid:
        digest = hashlib.sha256(msgspec.json.encode(data, order="deterministic")).hexdigest()
        metadata = {**metadata, "uid": f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"}
    data = {**data, "metadata": {"namespace": "default", **metadata}}
    return Manifest(known_pod(data), data, has_uid)
