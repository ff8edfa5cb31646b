"""Every decoder that any module keeps, found by looking at all of them: junk is refused in one of the ways that whoever uses
one is prepared for, and no message of the models is left without somebody who reads it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import moorage
from moorage.model.base import Message

#: What reading junk may raise. A RecursionError is no DecodeError, and bytes that are no text are often none either.
REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
DECODERS = (msgspec.json.Decoder, msgspec.msgpack.Decoder)
#: Spelled elsewhere, by whoever reads them without decoding all of it.
WRITTEN = {"_RawCommit", "Answers"}

_plain = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=4)
_values = st.recursive(
    _plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(moorage.__path__, "moorage."):
        if ".testing" not in found.name and not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def kept() -> dict[str, Any]:
    """By module and name. What a module has from another one is there only once."""
    found: dict[int, tuple[str, Any]] = {}
    for module in modules():
        for name, value in vars(module).items():
            decoder = getattr(value, "__self__", value)  # many keep only `Decoder(…).decode`
            if isinstance(decoder, DECODERS):
                found.setdefault(id(decoder), (f"{module.__name__}.{name}", decoder))
    return dict(found.values())


KEPT = kept()


def read(decode: Callable[[bytes], Any], data: bytes) -> None:
    try:
        decode(data)
    except REFUSALS:
        pass


def test_decoders_are_found() -> None:
    assert len(KEPT) > 70


@pytest.mark.parametrize("name", KEPT)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
def test_junk_is_refused_in_a_way_that_is_known(name: str, data: st.DataObject) -> None:
    decoder = KEPT[name]
    encode = msgspec.json.encode if isinstance(decoder, msgspec.json.Decoder) else msgspec.msgpack.encode
    read(decoder.decode, data.draw(st.binary(max_size=40)))
    whole = encode(data.draw(_values))
    read(decoder.decode, whole)
    read(decoder.decode, whole[: data.draw(st.integers(0, len(whole)))])


@pytest.mark.parametrize("name", KEPT)
def test_what_is_nested_too_deeply_is_refused(name: str) -> None:
    for deep in (b"[" * 100_000, b'{"a":' * 100_000, b"\x91" * 100_000, b"\x81\xa1a" * 100_000):
        read(KEPT[name].decode, deep)


def below(kind: type[Any]) -> Iterator[type[Any]]:
    """Subclasses, and theirs."""
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


def named_in(kind: Any, seen: set[Any]) -> None:
    """Every struct that is part of a type."""
    if isinstance(kind, msgspec.inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
        for field in kind.fields:
            named_in(field.type, seen)
        return
    for part in ("item_type", "key_type", "value_type"):
        if (inner := getattr(kind, part, None)) is not None:
            named_in(inner, seen)
    for inner in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        named_in(inner, seen)


def test_every_message_has_somebody_who_reads_it() -> None:
    """By a decoder that is kept, or by one that is made where it is used."""
    seen: set[Any] = set()
    sources = "".join(Path(module.__file__ or "").read_text() for module in modules())
    for decoder in KEPT.values():
        named_in(msgspec.inspect.type_info(decoder.type), seen)
    messages = {kind for kind in below(Message) if kind.__module__.startswith("moorage.")}
    unread = {kind.__name__ for kind in messages - seen if f"type={kind.__name__})" not in sources}
    assert unread <= WRITTEN
