"""Documents of tests of revisions, and the shapes that come of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import moorage.cli.example
from moorage.intents.core import validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.validate import Accepted
from moorage.model.groups import Revision
from moorage.model.problems import Problem, Refused
from moorage.model.shapes import Shape

EXAMPLE = (Path(next(iter(moorage.cli.example.__path__))) / "application.yaml").read_bytes()


def accept(data: dict[str, Any]) -> Accepted:
    found = validate.accept(data, {})
    assert isinstance(found, Accepted)
    return found


def manifest(kind: str = "Deployment", spec: dict[str, Any] | None = None, **pod: Any) -> dict[str, Any]:
    groups = {"Job": "batch/v1", "CronJob": "batch/v1", "Pod": "v1", "ReplicationController": "v1"}
    inner = {"containers": [{"name": "main"}], **pod}
    found: dict[str, Any] = {"apiVersion": groups.get(kind, "apps/v1"), "kind": kind, "metadata": {"name": "x"}}
    work = {**(spec or {}), "template": {"spec": inner}}
    found["spec"] = inner if kind == "Pod" else {"jobTemplate": {"spec": work}} if kind == "CronJob" else work
    return found


def ref(of: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": of["apiVersion"], "kind": of["kind"], "name": of["metadata"]["name"]}


def revision(
    manifests: list[dict[str, Any]], consumers: list[dict[str, Any]], attached: list[Any] | None = None, **app: Any
) -> Revision:
    spec = {"apps": [{"name": "web", "manifests": manifests, "consumers": consumers, **app}]}
    given = accept({"kind": "Application", "metadata": {"name": "shop"}, "spec": spec})
    own = [validate.intent(a, {}) for a in attached or ()]
    return resolve(given, own)


def shape(of: dict[str, Any], *needs: dict[str, Any], container: str = "main", **consumer: Any) -> Shape:
    consumers = [{"object": ref(of), "container": container, "needs": list(needs), **consumer}]
    (found,) = revision([of], consumers if needs or consumer else []).apps[0].shapes
    return found


def refusal(*args: Any, **kwargs: Any) -> Problem:
    with pytest.raises(Refused) as caught:
        revision(*args, **kwargs)
    return caught.value.problem


CPU4 = {"resource": "cpu", "requests": 4, "limits": 4}


def own(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, "spec": {"group": "shop", **spec}}


def required(kind: str, *terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}
