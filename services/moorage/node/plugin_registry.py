"""Finds plugins by their sockets, as the kubelet's plugin watcher does, and takes registrations of the older kind.

The newest plugin of a name wins. A plugin whose socket is gone stays known and stopped: calls to it fail, and after five minutes
its resource leaves the node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from . import grpc_unix
from .api import pluginregistration_pb2 as registration
from .api import resourceplugin_pb2 as wire
from .grpc_unix import SocketRefused
from .inotify import DirectoryWatch, sockets_below
from .plugin_endpoint import CountCall, PluginEndpoint, PluginFailed
from .plugin_messages import read_options
from .plugin_server import TYPE, VERSION

log = structlog.get_logger("node")

#: Seconds that a plugin has for its answer to GetInfo, and between tries with one that gives none.
INFO_DEADLINE, RETRY = 1.0, (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
#: Seconds that a start waits for plugins that are there already.
FIRST_LOOK = 0.25
#: Seconds after which the resource of a plugin that went away leaves the node.
REMOVED_AFTER = 300.0
#: The longest name of a resource or an endpoint that a plugin may register with.
_MAX_NAME = 253


class PluginState(NamedTuple):
    """A plugin as `moorage node plugins` shows it."""

    name: str
    registered: bool
    path: str
    message: str
    stopped_at: float | None


class _Known:
    def __init__(self) -> None:
        self.endpoint: PluginEndpoint | None = None
        self.stopped_at: float | None = None
        self.message = ""


class PluginRegistry:
    """The plugins of a node. `refuse` returns why a plugin of this name must not be registered, or ""; `changed` is called when
    a plugin came or went."""

    def __init__(
        self,
        directory: Path,
        count: CountCall,
        refuse: Callable[[str], str] = lambda name: "",
        changed: Callable[[str], None] = lambda name: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._count, self._refuse, self._changed, self._clock = (
            directory,
            count,
            refuse,
            changed,
            clock,
        )
        self._known: dict[str, _Known] = {}
        self._sockets: dict[Path, tuple[int, int]] = {}
        self._names: dict[Path, str] = {}
        self._tasks: dict[Path, asyncio.Task[None]] = {}
        self._watch: DirectoryWatch | None = None
        self._server: grpc.aio.Server | None = None
        self._legacy_directory: Path | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def start(self, legacy: Path | None = None) -> None:
        """Watches the directory and, where `legacy` names a socket, serves registrations there. What is in the directory
        already is asked before this returns, for a moment at most: a socket may be left from a plugin that is dead."""
        grpc_unix.make_private(self._directory)
        self._watch = DirectoryWatch(self._directory, self._look)
        if legacy is not None:
            self._legacy_directory = legacy.parent
            handler = grpc.unary_unary_rpc_method_handler(self._register)
            service = "resourceplugin.v1alpha1.Registration"
            self._server = await grpc_unix.serve(legacy, [grpc_unix.unary_methods(service, {"Register": handler})])
        self._look()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=FIRST_LOOK)

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        for task in (*self._tasks.values(), *self._background):
            task.cancel()
        if self._server is not None:
            await self._server.stop(0.2)
        for known in self._known.values():
            if known.endpoint is not None:
                await known.endpoint.close()

    def expect(self, names: Iterable[str]) -> None:
        """Makes resources known whose plugins are not back yet, as after a restart of the agent: their pods wait for them."""
        for name in names:
            if name not in self._known:
                known = self._known[name] = _Known()
                known.stopped_at, known.message = self._clock(), "not back yet"

    def get(self, resource: str) -> PluginEndpoint | None:
        """Returns the plugin of a resource, if it is registered and its socket is there."""
        known = self._known.get(resource)
        return known.endpoint if known is not None and known.stopped_at is None else None

    def is_known(self, resource: str) -> bool:
        """Returns whether a plugin serves the resource, or did until less than five minutes ago."""
        known = self._known.get(resource)
        return known is not None and (known.stopped_at is None or self._clock() - known.stopped_at < REMOVED_AFTER)

    def endpoints(self) -> list[PluginEndpoint]:
        return [
            known.endpoint for known in self._known.values() if known.endpoint is not None and known.stopped_at is None
        ]

    def names(self) -> Collection[str]:
        return [name for name in self._known if self.is_known(name)]

    def removed(self) -> list[str]:
        """Returns the resources whose plugins have been gone for five minutes."""
        return [name for name in self._known if not self.is_known(name)]

    def states(self) -> list[PluginState]:
        return [
            PluginState(
                name,
                known.endpoint is not None and known.stopped_at is None,
                known.endpoint.path if known.endpoint is not None else "",
                known.message or (known.endpoint.last_failure if known.endpoint is not None else ""),
                known.stopped_at,
            )
            for name, known in sorted(self._known.items())
        ]

    def _look(self) -> None:
        """Compares the directory with what is known: a socket that was replaced is a new one."""
        found = sockets_below(self._directory)
        for path in [path for path, identity in self._sockets.items() if found.get(path) != identity]:
            self._gone(path)
        for path, identity in found.items():
            if path not in self._sockets:
                self._sockets[path] = identity
                self._tasks[path] = asyncio.ensure_future(self._introduce(path))

    def _gone(self, path: Path) -> None:
        del self._sockets[path]
        if (task := self._tasks.pop(path, None)) is not None:
            task.cancel()
        name = self._names.pop(path, "")
        known = self._known.get(name)
        if known is not None and known.endpoint is not None and known.endpoint.path == str(path):
            known.stopped_at, known.message = self._clock(), "its socket is gone"
            log.warning("a plugin is gone", plugin=name)
            self._changed(name)

    async def _introduce(self, path: Path) -> None:
        """Asks a plugin for its name until it answers or its socket is gone."""
        for attempt in range(1 << 30):
            try:
                await self._introduce_once(path)
                return
            except (SocketRefused, PluginFailed, grpc.aio.AioRpcError, DecodeError, ValueError) as error:
                words = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                if attempt == 0:
                    log.warning("a plugin cannot be registered", socket=str(path), error=words)
                self._known_failure(path, words or "")
            await asyncio.sleep(RETRY[min(attempt, len(RETRY) - 1)])

    def _known_failure(self, path: Path, words: str) -> None:
        name = self._names.get(path)
        if name is not None and self._known[name].endpoint is None:
            self._known[name].message = words

    async def _introduce_once(self, path: Path) -> None:
        grpc_unix.check_peer(path, grpc_unix.own_users())
        channel = grpc_unix.channel(str(path))
        try:
            ask = channel.unary_unary("/pluginregistration.Registration/GetInfo")
            info = registration.PluginInfo.FromString(await ask(b"", timeout=INFO_DEADLINE))
            if info.type != TYPE:
                return  # a plugin of another kind: whoever it is for will speak to it
            why = self._check(info.name, info.supported_versions, info.endpoint)
            if why:
                self._names[path] = info.name[:_MAX_NAME]
                self._known.setdefault(info.name[:_MAX_NAME], _Known()).message = why
                await self._notify(channel, False, why)
                log.warning("a plugin is not registered", plugin=info.name[:_MAX_NAME], why=why)
                return
            where = grpc_unix.socket_path(info.endpoint) if info.endpoint else path
            await self._add(info.name, where, None)
            self._names[path] = info.name
            await self._notify(channel, True, "")
        finally:
            await channel.close()

    def _check(self, name: str, versions: Iterable[str], endpoint: str) -> str:
        if not name or len(name) > _MAX_NAME or len(endpoint) > grpc_unix.MAX_PATH:
            return "the plugin gives no usable name or endpoint"
        if VERSION not in versions:
            return f"the plugin supports {', '.join(versions) or 'no version'}; the agent supports {VERSION}"
        return self._refuse(name)

    @staticmethod
    async def _notify(channel: grpc.aio.Channel, registered: bool, error: str) -> None:
        status = registration.RegistrationStatus(plugin_registered=registered, error=error)
        tell = channel.unary_unary("/pluginregistration.Registration/NotifyRegistrationStatus")
        try:
            await tell(status.SerializeToString(), timeout=INFO_DEADLINE)
        except grpc.aio.AioRpcError as failed:
            log.warning("a plugin does not take its registration status", error=failed.details())

    async def _add(self, name: str, path: Path, options: Any) -> None:
        grpc_unix.check_peer(path, grpc_unix.own_users())
        endpoint = PluginEndpoint(name, grpc_unix.channel(str(path)), str(path), self._count, options)
        if options is None:
            try:
                endpoint.options = await endpoint.read_options()
            except PluginFailed:
                await endpoint.close()
                raise
        known = self._known.setdefault(name, _Known())
        before, known.endpoint, known.stopped_at, known.message = known.endpoint, endpoint, None, ""
        log.info("a plugin is registered", plugin=name)
        self._changed(name)
        if before is not None:
            self._spawn(before.close())

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _register(self, request: bytes, context: Any) -> bytes:
        """Serves the older registration: the plugin tells its endpoint, a socket beside ours."""
        try:
            message = wire.RegisterRequest.FromString(request)
            endpoint = message.endpoint
            if why := self._check(message.resource_name, [message.version], endpoint) or _bad_endpoint(endpoint):
                raise ValueError(why)
            assert self._legacy_directory is not None
            options = read_options(message.options) if message.HasField("options") else None
            await self._add(message.resource_name, self._legacy_directory / endpoint, options)
        except (DecodeError, ValueError, SocketRefused, PluginFailed) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:1024])
        return b""


def _bad_endpoint(endpoint: str) -> str:
    return (
        ""
        if endpoint and "/" not in endpoint and not endpoint.startswith(".")
        else "the endpoint is no name of a socket"
    )


def listed(states: Iterable[PluginState]) -> list[Mapping[str, Any]]:
    """Returns the plugins as the command shows them."""
    return [
        {"name": s.name, "registered": s.registered, "socket": s.path, "message": s.message, "stoppedAt": s.stopped_at}
        for s in states
    ]
