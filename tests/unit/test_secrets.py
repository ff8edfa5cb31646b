"""Values of Secrets are not shown, and who sends back what was shown keeps what is stored."""

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
from moorage.model.redaction import REDACTED, redacted, restored, sample

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
    "whole",
    [
        secret(),
        [CONFIG, secret()],
        {"kind": "List", "items": [secret(), CONFIG]},
        {"spec": {"apps": [{"name": "a", "manifests": [secret(), {"kind": "List", "items": [secret("t")]}]}]}},
        {"kind": "Secret", "metadata": {"name": "odd"}, "data": VALUE},
    ],
)
def test_no_value_is_left_and_none_is_lost(whole: Any) -> None:
    before = copy.deepcopy(whole)
    shown = redacted(whole)
    assert VALUE not in str(shown) and REDACTED in str(shown)
    assert whole == before, "what is stored is not touched"
    assert restored(shown, whole) == whole


def test_what_has_no_secret_is_the_same_object() -> None:
    for value in (CONFIG, [CONFIG], {"kind": "Secret", "name": "a reference"}, 1, None, "Secret"):
        assert redacted(value) is value


def test_a_value_that_nothing_is_known_of_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        restored({"apps": [redacted(secret(a=VALUE, b=VALUE))]}, [secret(a=VALUE), secret("other", b=VALUE)])
    assert [e.path for e in refused.value.problem.errors] == ["apps[0].data.b"]
    assert refused.value.problem.errors[0].code == "Hidden"


def test_what_is_new_beside_what_was_hidden_is_taken() -> None:
    shown = redacted(secret())
    shown["data"]["more"] = "bmV3"
    assert restored(shown, secret())["data"] == {"password": VALUE, "more": "bmV3"}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(plain, plain)
def test_everything_else_stays_as_it_is(one: Any, other: Any) -> None:
    whole = {"one": one, "two": [secret(), other]}
    assert restored(redacted(whole), whole) == whole
    assert redacted(one) is one


def test_the_read_model_never_holds_one() -> None:
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
def test_an_app_is_shown_without(manifests: Any) -> None:
    path = ("projects", "p", "composite-apps", "c", "v1", "apps", "a")
    body = {"metadata": {"name": "a"}, "spec": {"manifests": manifests}}
    raw = msgspec.json.encode(body)
    shown = shown_body(path, raw)
    assert VALUE.encode() not in shown
    if "kind" in str(manifests):
        assert b"seen" in shown or b"x00" in raw or b"u0000" in raw


def test_samples_of_what_could_not_be_read() -> None:
    assert sample(b'{"kind": "Deploym') == '{"kind": "Deploym'
    assert VALUE not in sample(f'{{"kind": "Secret", "data": {{"a": "{VALUE}"}}'.encode())
    assert "abc" not in sample(b'{"verb":"create","file":"abc"}')
    assert len(sample(b"x" * 5000)) == 2048
