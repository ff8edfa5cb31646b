"""Installs `machines` in a cluster and removes it again, with an administrator's rights. After it has left, the cluster is as before."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec

from moorage.kube import Api, ApiDiscovery, ApiError, Say, install_objects
from moorage.machine_groups.names import GROUP_VERSION, MACHINE_TYPE, OTHER_NAMESPACE, SLOT_GATE
from moorage.machine_groups.node_marks import node_patch, node_view, recorded
from moorage.machine_groups.pods import gates_of, is_over, left_over, was_let_in
from moorage.model.object_names import NAMESPACE

from .crds import definitions
from .hook_configurations import NAME, paths
from .install_manifests import CREDENTIALS, LEASE, deployment, hooks, rights, service, takeover_rights
from .other_controller import DEPLOYMENT

Object = dict[str, Any]
#: How often it is looked, and after how many seconds, whether a process that still runs made something again.
ROUNDS, ROUND = 20, 0.5
_MERGE = "application/merge-patch+json"
_ROOT = f"/apis/{GROUP_VERSION}"
_CREDENTIALS = f"/api/v1/namespaces/{NAMESPACE}/secrets/{CREDENTIALS}"
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"


async def install(
    api: Api, image: str, replicas: int, say: Say, *, deploy: bool = True, user: Object | None = None
) -> None:
    """Creates or updates everything. Safe to repeat. `user`: the Secret with the user of the broker."""
    objects = [*definitions(), *rights()]
    if await api.get(f"/api/v1/namespaces/{OTHER_NAMESPACE}") is not None:
        objects += takeover_rights()
    objects += [user] if user is not None else []
    objects += [service(), deployment(image, replicas)] if deploy else []
    await install_objects(api, objects, say)
    # Where the hooks are, and whom to trust, is written by the worker.
    for obj in hooks():
        path = paths()[obj["kind"]]
        if await api.get(f"{path}/{NAME}") is None:
            await api.call("POST", path, body=msgspec.json.encode(obj))
            say(f"{obj['kind']} {NAME} created")


async def is_installed(api: Api) -> bool:
    """Returns whether anything of it is in the cluster, be it what is removed last."""
    places = [_ROOT, *(f"{path}/{NAME}" for path in paths().values())]
    places += [f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}", _CREDENTIALS, _LEASE]
    return any([await api.get(place) is not None for place in places])


async def in_use(api: Api) -> list[str]:
    """Returns the Machines and guests of a cluster, as `Machine NAME` and `guest NAMESPACE/NAME`."""
    found = [f"Machine {machine['metadata']['name']}" for machine in await _items(api, f"{_ROOT}/machines")]
    guests = [pod["metadata"] for pod in await _guests(api)]
    return found + [f"guest {meta['namespace']}/{meta['name']}" for meta in guests]


async def uninstall(api: Api, say: Say) -> None:
    """Removes everything, in an order in which nothing that stays has to wait for what is gone: hooks first."""
    # First those that check: they refuse guests that no other hook has changed.
    for kind, path in reversed(list(paths().items())):
        await _delete(api, f"{path}/{NAME}")
        say(f"{kind} {NAME} removed")
    await _delete(api, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}")
    # Another controller that is still there goes on with its Machines.
    has_other = await api.get(DEPLOYMENT) is not None
    await _remove_work(api, say, all_nodes=not has_other)
    if not has_other:
        await _remove_machines(api, say)
        # A process that still runs acted until its Machines were gone.
        for _ in range(ROUNDS):
            await asyncio.sleep(ROUND)
            if not await _remove_work(api, say, all_nodes=True):
                break
    kinds = ApiDiscovery(api)
    for obj in reversed([*rights(), *takeover_rights(), service()]):
        if obj["kind"] == "Namespace":
            continue  # the agent's, too
        found = await kinds.find(obj["apiVersion"], obj["kind"])
        if found is not None:
            await _delete(api, found.path(obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))
            say(f"{obj['kind']} {obj['metadata']['name']} removed")
    await _delete(api, _CREDENTIALS)
    await _delete(api, _LEASE)


async def _remove_work(api: Api, say: Say, *, all_nodes: bool) -> bool:
    """Opens the gates of guests, also of those that came while hooks were being removed, and removes reservations, and what was put on
    Nodes. Returns whether there was anything."""
    found = False
    for pod in await _guests(api):
        found |= await _open(api, pod)
    for plural, root in (("statefulsets", "/apis/apps/v1"), ("services", "/api/v1")):
        for obj in await _items(api, f"{root}/namespaces/{NAMESPACE}/{plural}", MACHINE_TYPE):
            await _delete(api, f"{root}/namespaces/{NAMESPACE}/{plural}/{obj['metadata']['name']}")
            found = True
    nodes = await _items(api, "/api/v1/nodes")
    silent = {node["metadata"]["name"] for node in nodes if node_view(node).conditions.get("Ready") != "True"}
    for pod in await _items(api, f"/api/v1/namespaces/{NAMESPACE}/pods", MACHINE_TYPE):
        if pod["spec"].get("nodeName") in silent:  # no kubelet ends it, and the namespace would wait for it
            await _delete(api, f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}", gracePeriodSeconds=0)
    for node in nodes:
        if all_nodes or recorded(node_view(node)).group:
            found |= await _clean(api, node, say)
    return found


async def _remove_machines(api: Api, say: Say) -> None:
    for plural in ("machines", "machinenodepools"):
        for obj in await _items(api, f"{_ROOT}/{plural}"):
            path = f"{_ROOT}/{plural}/{quote(obj['metadata']['name'])}"
            if obj["metadata"].get("finalizers"):
                await _patch(api, path, {"metadata": {"finalizers": None}})
            await _delete(api, path)
            say(f"{obj.get('kind', plural)} {obj['metadata']['name']} removed")
    for obj in definitions():
        await _delete(api, f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{obj['metadata']['name']}")
    # Pods of the controller before that were not replaced yet; their StatefulSets may be gone already.
    for pod in await _items(api, f"/api/v1/namespaces/{OTHER_NAMESPACE}/pods", MACHINE_TYPE):
        if left_over(pod) is not None:
            await _delete(api, f"/api/v1/namespaces/{OTHER_NAMESPACE}/pods/{quote(pod['metadata']['name'])}")


async def _guests(api: Api) -> list[Object]:
    return [pod for pod in await _items(api, "/api/v1/pods", MACHINE_TYPE) if was_let_in(pod) and not is_over(pod)]


async def _open(api: Api, pod: Object) -> bool:
    """Takes the gate off a guest that waits: nobody would do it any more. Returns whether it had one."""
    gates = gates_of(pod)
    if SLOT_GATE not in gates:
        return False
    rest = [{"name": gate} for gate in gates if gate != SLOT_GATE]
    meta = pod["metadata"]
    path = f"/api/v1/namespaces/{quote(meta['namespace'])}/pods/{quote(meta['name'])}"
    body = {"metadata": {"uid": meta["uid"]}, "spec": {"schedulingGates": rest or None}}
    await _patch(api, path, body)
    return True


async def _clean(api: Api, node: Object, say: Say) -> bool:
    """Takes off a Node what was put on it. Returns whether there was anything."""
    name = node["metadata"]["name"]
    for _ in range(5):  # its kubelet writes it, too
        patch = node_patch(node_view(node), None)
        if patch is None:
            return False
        try:
            await api.call(
                "PATCH", f"/api/v1/nodes/{quote(name)}", body=msgspec.json.encode(patch), content_type=_MERGE
            )
            say(f"Node {name} cleaned")
            return True
        except ApiError as error:
            if error.code != 409:
                raise
        node = await api.get(f"/api/v1/nodes/{quote(name)}") or node
    return True


async def _items(api: Api, path: str, labels: str = "") -> list[Object]:
    found = await api.get(path, query={"labelSelector": labels} if labels else None)
    items: list[Object] = (found or {}).get("items") or []
    return items


async def _patch(api: Api, path: str, body: Object) -> None:
    try:
        await api.call("PATCH", path, body=msgspec.json.encode(body), content_type=_MERGE)
    except ApiError as error:
        if error.code != 404:
            raise


async def _delete(api: Api, path: str, **options: Any) -> None:
    try:
        await api.call("DELETE", path, body=msgspec.json.encode({"propagationPolicy": "Background", **options}))
    except ApiError as error:
        if error.code not in (404, 409):
            raise
