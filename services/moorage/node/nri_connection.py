"""Speaks ttrpc inside NRI's multiplexer over one socket: the runtime calls the plugin, and the plugin calls the runtime.

A frame of the multiplexer is `u32 connection, u32 length`; in the frames of a connection, which may split messages, stands
ttrpc: `u32 length, u32 stream, u8 type, u8 flags`, then a Request or a Response."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import structlog
from google.protobuf.message import DecodeError, Message

from . import grpc_unix
from .api import nri_pb2 as nri

log = structlog.get_logger("node")

PLUGIN, RUNTIME = 1, 2
_REQUEST, _RESPONSE = 1, 2
_FRAME, _MESSAGE = struct.Struct(">II"), struct.Struct(">IIBB")
#: What ttrpc allows of a message, and NRI of a frame.
MAX_MESSAGE = 4 << 20
_UNKNOWN, _UNIMPLEMENTED = 2, 12
M = TypeVar("M", bound=Message)

#: Answers a call of the runtime by its method; raises to refuse it.
Serve = Callable[[str, bytes], Awaitable[Message]]


class NriFailed(Exception):
    """The runtime refused a call, or the connection is gone."""


class NriConnection:
    """One connection to a runtime. `closed` is set when it is over."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, serve: Serve) -> None:
        self._reader, self._writer, self._serve = reader, writer, serve
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._stream = -1
        self._buffers = {PLUGIN: bytearray(), RUNTIME: bytearray()}
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def connect(cls, path: Path, serve: Serve) -> NriConnection:
        grpc_unix.check_peer(path, grpc_unix.own_users())
        reader, writer = await asyncio.open_unix_connection(str(path))
        return cls(reader, writer, serve)

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def call(self, method: str, request: Message, answer: type[M], timeout: float = 10.0) -> M:
        """Calls a method of the runtime."""
        if self.closed.is_set():
            raise NriFailed("the runtime is away")
        self._stream += 2
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[self._stream] = future
        envelope = nri.Request(
            service="nri.pkg.api.v1alpha1.Runtime",
            method=method,
            payload=request.SerializeToString(),
            timeout_nano=int(timeout * 1e9),
        )
        stream = self._stream
        try:
            self._send(RUNTIME, stream, _REQUEST, envelope.SerializeToString())
            response = nri.Response.FromString(await asyncio.wait_for(future, timeout))
        except TimeoutError as late:
            raise NriFailed(f"{method}: no answer within {timeout:.0f} s") from late
        finally:
            self._waiting.pop(stream, None)
        if response.status.code:
            raise NriFailed(f"{method}: {response.status.message}")
        return answer.FromString(response.payload)

    def _send(self, connection: int, stream: int, kind: int, body: bytes) -> None:
        message = _MESSAGE.pack(len(body), stream, kind, 0) + body
        self._writer.write(_FRAME.pack(connection, len(message)) + message)

    async def _read(self) -> None:
        try:
            while True:
                connection, length = _FRAME.unpack(await self._reader.readexactly(_FRAME.size))
                if connection not in self._buffers or length > MAX_MESSAGE + _MESSAGE.size:
                    raise NriFailed(f"a frame of {length} bytes for connection {connection}")
                self._buffers[connection] += await self._reader.readexactly(length)
                self._take(self._buffers[connection])
        except (asyncio.IncompleteReadError, OSError):
            pass  # the runtime ended
        except (NriFailed, DecodeError) as error:
            log.warning("the runtime's NRI makes no sense", error=str(error))
        finally:
            self.closed.set()
            self._writer.close()
            for task in self._tasks:
                task.cancel()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(NriFailed("the runtime is away"))

    def _take(self, buffer: bytearray) -> None:
        """Takes the whole messages out of a connection's bytes."""
        while len(buffer) >= _MESSAGE.size:
            length, stream, kind, _flags = _MESSAGE.unpack_from(buffer)
            if length > MAX_MESSAGE:
                raise NriFailed(f"a message of {length} bytes")
            if len(buffer) < _MESSAGE.size + length:
                return
            body = bytes(buffer[_MESSAGE.size : _MESSAGE.size + length])
            del buffer[: _MESSAGE.size + length]
            if kind == _RESPONSE:
                future = self._waiting.get(stream)
                if future is not None and not future.done():
                    future.set_result(body)
            elif kind == _REQUEST:
                task = asyncio.ensure_future(self._answer(stream, nri.Request.FromString(body)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _answer(self, stream: int, request: nri.Request) -> None:
        response = nri.Response()
        try:
            response.payload = (await self._serve(request.method, request.payload)).SerializeToString()
        except NotImplementedError:
            response.status.code, response.status.message = _UNIMPLEMENTED, f"no method {request.method}"
        except Exception as error:  # noqa: BLE001 - the runtime waits for an answer, whatever went wrong
            response.status.code, response.status.message = _UNKNOWN, str(error)
        self._send(PLUGIN, stream, _RESPONSE, response.SerializeToString())
