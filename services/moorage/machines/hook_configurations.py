"""The hook configurations: which requests the API server asks about, and where."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from moorage.machine_groups.names import MACHINE, MACHINE_TYPE, NAMESPACE_LABELS, SLOT_OF
from moorage.model.object_names import NAMESPACE

Object = dict[str, Any]
NAME = "moorage-machines"
#: The service account with which guests are let in.
USER = f"system:serviceaccount:{NAMESPACE}:{NAME}"
TIMEOUT = 5
INJECT, CHECK, MACHINES = "/inject", "/check", "/machines"
_SYSTEM = ("kube-system", "kube-public", "kube-node-lease", NAMESPACE)


def client(path: str, url: str = "") -> Object:
    """Returns where a hook is: at a URL, or at the Service."""
    if url:
        return {"url": url.rstrip("/") + path}
    return {"service": {"name": NAME, "namespace": NAMESPACE, "path": path, "port": 443}}


def _has(key: str, at: str, where: str = "labels") -> str:
    place = f"{at}.metadata.{where}"
    return f"({at} != null && has({place}) && '{key}' in {place})"


def _hook(name: str, path: str, url: str, rules: list[Object], **more: Any) -> Object:
    return {
        "name": f"{name}.machines.moorage.dev",
        "clientConfig": client(path, url),
        "rules": rules,
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT,
        "admissionReviewVersions": ["v1"],
        **more,
    }


def _rule(
    operations: list[str], resources: list[str], group: str = "", version: str = "v1", scope: str = "*"
) -> Object:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": operations,
        "resources": resources,
        "scope": scope,
    }


def _namespaces(label: str = "") -> Object:
    """Selects namespaces that are enabled by a label, and never those of the system."""
    wanted: list[Object] = [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(_SYSTEM)}]
    if label:
        wanted.insert(0, {"key": label, "operator": "In", "values": ["enabled"]})
    return {"matchExpressions": wanted}


def _of_new_pods(name: str, path: str, url: str, conditions: list[Object], **more: Any) -> list[Object]:
    """Returns hooks for new Pods that ask for a slot, one for each label by which namespaces are enabled."""
    asks = f"{_has(MACHINE_TYPE, 'object')} || {_has(MACHINE, 'object')}"
    return [
        _hook(
            f"{name}-{number}",
            path,
            url,
            [_rule(["CREATE"], ["pods"], scope="Namespaced")],
            namespaceSelector=_namespaces(label),
            matchConditions=[{"name": "asks-for-a-slot", "expression": asks}, *conditions],
            **more,
        )
        for number, label in enumerate(NAMESPACE_LABELS, 1)
    ]


def mutating(url: str = "") -> Object:
    hooks = _of_new_pods("inject", INJECT, url, [], reinvocationPolicy="IfNeeded")
    return _configuration("MutatingWebhookConfiguration", hooks)


def validating(url: str = "") -> Object:
    # What was let in has the annotation: other Pods with such labels never wait for this hook.
    let_in = f"{_has(SLOT_OF, 'object', 'annotations')} || {_has(SLOT_OF, 'oldObject', 'annotations')}"
    # A hook that comes later may have made a Pod ask for a slot.
    not_let_in = {"name": "was-not-let-in", "expression": f"!{_has(SLOT_OF, 'object', 'annotations')}"}
    kinds = "imperator.tenzen-y.io"
    hooks = [
        _hook(
            "guests",
            CHECK,
            url,
            [_rule(["CREATE", "UPDATE"], ["pods", "pods/resize"], scope="Namespaced")],
            namespaceSelector=_namespaces(),
            matchConditions=[
                {"name": "is-a-guest", "expression": let_in},
                {"name": "is-not-by-us", "expression": f"request.userInfo.username != '{USER}'"},
            ],
        ),
        *_of_new_pods("asking", CHECK, url, [not_let_in]),
        _hook("machines", MACHINES, url, [_rule(["CREATE", "UPDATE"], ["machines"], kinds, "v1alpha1", "Cluster")]),
    ]
    return _configuration("ValidatingWebhookConfiguration", hooks)


def _configuration(kind: str, hooks: list[Object]) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {
            "name": NAME,
            "labels": {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "moorage"},
        },
        "webhooks": hooks,
    }


def with_bundle(configuration: Object, bundle: bytes) -> Object:
    encoded = b64encode(bundle).decode()
    hooks = [{**h, "clientConfig": {**h["clientConfig"], "caBundle": encoded}} for h in configuration["webhooks"]]
    return {**configuration, "webhooks": hooks}


def paths() -> Mapping[str, str]:
    """Returns the path of each configuration at the API server."""
    root = "/apis/admissionregistration.k8s.io/v1"
    return {
        "MutatingWebhookConfiguration": f"{root}/mutatingwebhookconfigurations",
        "ValidatingWebhookConfiguration": f"{root}/validatingwebhookconfigurations",
    }
