"""Values of Secrets are never shown, and an object sent back with hidden values keeps the stored ones."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from moorage.gateway.core.redaction import shown_body, shown_record
from moorage.model.groups import GroupRecord, Revision
from moorage.model.problems import Refused
from moorage.parsing.redaction import REDACTED, loggable_excerpt, redact, restore

VALUE = "aHVudGVyMg=="


def secret(name: str = "s", **values: Any) -> dict[str, Any]:
    copy_of = {"kubectl.kubernetes.io/last-applied-configuration": VALUE, "note": "n"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "annotations": copy_of},
        "data": values or {"password": VALUE},
        "stringData": {"user": VALUE},
        "type": "Opaque",
    }


CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"password": "seen"}}


@pytest.mark.parametrize(
    "stored",
    [
        secret(),
        [CONFIG, secret()],
        {"kind": "List", "items": [secret(), CONFIG]},
        {"spec": {"apps": [{"name": "a", "manifests": [secret(), {"kind": "List", "items": [secret("t")]}]}]}},
        {"kind": "Secret", "metadata": {"name": "odd"}, "data": VALUE},
    ],
)
def test_redaction_hides_every_value_and_restoring_loses_none(stored: Any) -> None:
    before = copy.deepcopy(stored)
    shown = redact(stored)
    assert VALUE not in str(shown) and REDACTED in str(shown)
    assert stored == before, "the stored object is unchanged"
    assert restore(shown, stored) == stored


def test_redaction_returns_the_same_object_without_secrets() -> None:
    for value in (CONFIG, [CONFIG], {"kind": "Secret", "name": "a reference"}, 1, None, "Secret"):
        assert redact(value) is value


def test_a_hidden_value_that_is_not_stored_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        restore({"apps": [redact(secret(a=VALUE, b=VALUE))]}, [secret(a=VALUE), secret("other", b=VALUE)])
    assert [e.path for e in refused.value.problem.errors] == ["apps[0].data.b"]
    assert refused.value.problem.errors[0].code == "Hidden"


def test_new_values_beside_hidden_ones_are_kept() -> None:
    shown = redact(secret())
    shown["data"]["more"] = "bmV3"
    assert restore(shown, secret())["data"] == {"password": VALUE, "more": "bmV3"}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(plain, plain)
def test_everything_but_secrets_is_unchanged(one: Any, other: Any) -> None:
    stored = {"one": one, "two": [secret(), other]}
    assert restore(redact(stored), stored) == stored
    assert redact(one) is one


def test_the_read_model_never_holds_a_secret_value() -> None:
    document = {"spec": {"apps": [{"name": "a", "manifests": [secret()]}]}}
    record = GroupRecord(
        group="p/a/v1/default",
        revision=1,
        state="Instantiated",
        resolved=Revision(group="p/a/v1/default", revision=1, tenant="p", apps=[]),
        manifests={"a": [secret()]},
        document=document,
    )
    shown = shown_record(msgspec.json.encode(record))
    assert VALUE not in str(shown.document) + str(shown.manifests)


@pytest.mark.parametrize("manifests", [[CONFIG, secret()], yaml.dump_all([CONFIG, secret()]), "{kind: \x00"])
def test_an_app_is_shown_without_secret_values(manifests: Any) -> None:
    path = ("projects", "p", "composite-apps", "c", "v1", "apps", "a")
    body = {"metadata": {"name": "a"}, "spec": {"manifests": manifests}}
    raw = msgspec.json.encode(body)
    shown = shown_body(path, raw)
    assert VALUE.encode() not in shown
    if "kind" in str(manifests):
        assert b"seen" in shown or b"x00" in raw or b"u0000" in raw


def test_excerpts_of_undecodable_messages_hold_no_secrets() -> None:
    assert loggable_excerpt(b'{"kind": "Deploym') == '{"kind": "Deploym'
    assert VALUE not in loggable_excerpt(f'{{"kind": "Secret", "data": {{"a": "{VALUE}"}}'.encode())
    assert "abc" not in loggable_excerpt(b'{"verb":"create","file":"abc"}')
    assert len(loggable_excerpt(b"x" * 5000)) == 2048
