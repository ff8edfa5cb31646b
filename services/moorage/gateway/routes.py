"""The table of all routes, except those of `/v2`."""

from __future__ import annotations

from typing import Any, Literal

from moorage.model.attempts import Why
from moorage.model.desired_state import DiffReply
from moorage.model.documents import IntentDocument
from moorage.model.machine_views import GuestView, MachineView, SlotView
from moorage.model.placement_explanations import CandidatesExplained
from moorage.model.records import Replay

from . import (
    api_docs,
    candidates,
    classes,
    cloudevents,
    clusters,
    commands,
    decisions,
    documents,
    events,
    fleet_commands,
    groups,
    health,
    machines,
    parts,
    placement,
    token_routes,
)
from .core import class_schemas, schemas
from .core.schemas import Page
from .route import JSON, SSE, TEXT, YAML, Query, Route
from .tokens import TokenRequest

_GROUP = "/v1/groups/{project}/{app}/{version}/{group}"
_PAGED = (
    Query("limit", "Maximum number of items in a page; 0 for all.", int),
    Query("continue", "Value of `continue` in the previous page."),
)
_SELECTED = (
    *_PAGED,
    Query("labelSelector", "Label selector as in kubectl: `a=b,c!=d,e in (f,g),!h`.", str, "region=eu"),
)
_PROJECT = Query("project", "Only items of this project.")
_NAMES = Query("names", "Maximum number of clusters to list for each set.", int)
_DOCUMENTS = (JSON, YAML)

OPEN = (
    Route("GET", "/", api_docs.get_start, "Show what this is, with links.", str, produces=("text/html",), role="nobody", tag="description"),
    Route("GET", "/livez", health.livez, "The process is alive.", str, produces=(TEXT,), role="nobody", tag="health"),
    Route(
        "GET",
        "/readyz",
        health.readyz,
        "The gateway is ready; lists missing dependencies.",
        str,
        produces=(TEXT,),
        role="nobody",
        refusals=(503,),
        tag="health",
    ),
    Route("GET", "/metrics", health.get_metrics, "Get metrics for Prometheus.", str, produces=(TEXT,), role="nobody", tag="health"),
    Route("GET", "/openapi.json", api_docs.get_openapi, "Get this OpenAPI document.", dict[str, Any], role="nobody", tag="description"),
    Route("GET", "/v1/version", api_docs.get_version, "Get the version of the gateway.", schemas.Version, role="nobody", tag="description"),
    Route("GET", "/docs", api_docs.get_docs, "Show the documentation page.", str, produces=("text/html",), role="nobody", tag="description"),
)  # fmt: skip

DOCUMENTS = (
    Route(
        "POST",
        "/v1/apply",
        documents.apply,
        "Apply documents. They are stored durably when the response arrives.",
        schemas.Applied | schemas.AppliedAll,
        body=schemas.DocumentBody,
        consumes=_DOCUMENTS,
        query=(Query("dryRun", "Validate and place without storing anything.", bool),),
        refusals=(403, 404, 409, 503),
        role="viewer",
        role_detail="A viewer may only use dry runs; a Fleet, and resource classes and what belongs to them, require the role admin.",
        tag="documents",
        etag="request",
    ),
    Route(
        "POST",
        "/v1/simulate",
        documents.simulate,
        "Place documents without storing or claiming anything.",
        Why | schemas.WhyAll,
        body=schemas.DocumentBody,
        consumes=_DOCUMENTS,
        refusals=(403, 404, 409, 503),
        role="viewer",
        tag="documents",
    ),
    Route("GET", "/v1/applications", groups.list_applications, "List applications with their status.", Page[schemas.ApplicationItem], query=(*_SELECTED, _PROJECT), tag="documents"),
    Route("GET", "/v1/applications/{project}/{name}", groups.get_application, "Get an application.", schemas.ApplicationItem, tag="documents", etag="response"),
    Route("DELETE", "/v1/applications/{project}/{name}", commands.delete_application, "Terminate and delete an application.", schemas.Leaving, 202, (204,), tag="documents", etag="request"),
    Route("GET", "/v1/intents", groups.list_intents, "List standalone intents.", Page[IntentDocument], query=(*_SELECTED, _PROJECT, Query("kind", "Only intents of this kind.", str, "HpaIntent")), tag="documents"),
    Route("GET", "/v1/intents/{kind}/{project}/{name}", groups.get_intent, "Get an intent.", IntentDocument, tag="documents", refusals=(400,), etag="response"),
    Route("DELETE", "/v1/intents/{kind}/{project}/{name}", commands.delete_intent, "Delete an intent and update its group.", None, 204, tag="documents", refusals=(400,), etag="request"),
)  # fmt: skip

GROUPS = (
    Route("GET", "/v1/groups", groups.list_groups, "List groups.", Page[schemas.GroupItem], query=(*_SELECTED, _PROJECT), tag="groups"),
    Route("GET", _GROUP, groups.get_group, "Get a group.", schemas.GroupItem, tag="groups", etag="response"),
    Route("DELETE", _GROUP, commands.delete_group, "Terminate and delete a group.", schemas.Leaving, 202, (204,), tag="groups", etag="request"),
    Route("GET", _GROUP + "/why", groups.explain_group, "Explain the placement of a group.", Why, tag="groups"),
    Route("GET", _GROUP + "/candidates", candidates.get_group_candidates, "List the clusters that qualify for each app.", schemas.Candidates, query=(_NAMES,), tag="groups"),
    Route("GET", _GROUP + "/story", events.get_group_story, "List all events of a group in order.", Page[schemas.EventItem], query=(Query("limit", "Maximum number of events, counted from the last one.", int),), tag="groups"),
    Route("GET", _GROUP + "/diff", groups.diff_group, "Compare the applied objects of a group with its manifests.", DiffReply, tag="groups", refusals=(503,)),
    Route("POST", _GROUP + "/{verb}", commands.act, "Run an operation on a group: " + ", ".join(commands.VERBS) + ".", schemas.Acted, 202, tag="groups", refusals=(400, 503)),
)  # fmt: skip

_OF_MACHINE = (
    Query("machine", "Only of this machine type, GROUP/TYPE.", str, "general/large"),
    Query("cluster", "Only of this cluster, PROVIDER/NAME.", str, "lab/edge-1"),
)
FLEET = (
    Route("GET", "/v1/clusters", clusters.list_clusters, "List clusters.", Page[schemas.ClusterItem], query=(*_SELECTED, Query("view", "`name` returns only names and states.", Literal["name", "full"])), tag="fleet"),
    Route("GET", "/v1/clusters/{provider}/{name}", clusters.get_cluster, "Get a cluster with its active claims.", schemas.ClusterItem, tag="fleet"),
    Route("PATCH", "/v1/clusters/{provider}/{name}", fleet_commands.patch_cluster, "Cordon a cluster or set its labels.", schemas.ClusterEdited, body=schemas.ClusterEdit, refusals=(503,), tag="fleet"),
    Route("DELETE", "/v1/clusters/{provider}/{name}", fleet_commands.delete_cluster, "Delete a lost cluster; 409 while it reports or has active claims.", None, 204, query=(Query("abandonClaims", "Delete the cluster despite active claims. Its groups are placed again; pods that may still run there are not removed.", bool),), refusals=(400, 409, 503), tag="fleet"),
    Route("GET", "/v1/nodes", clusters.list_nodes, "List nodes.", Page[schemas.NodeItem], query=(*_SELECTED, Query("cluster", "Only nodes of this cluster, PROVIDER/NAME.", str, "lab/edge-1")), refusals=(404,), tag="fleet"),
    Route("GET", "/v1/nodes/{provider}/{cluster}/{name}", clusters.get_node, "Get a node.", schemas.NodeItem, tag="fleet"),
    Route("GET", "/v1/parts", parts.list_parts, "List parts of nodes, with their use and holders.", Page[schemas.PartItem], query=(*_PAGED, Query("cluster", "Only parts of this cluster, PROVIDER/NAME.", str, "lab/edge-1"), Query("node", "Only parts of nodes of this name.", str, "n-0"), Query("class", "Only parts that this resource class selects, as a need for it would.", str, "nvidia.high.mem")), refusals=(404,), tag="fleet"),
    Route("GET", "/v1/parts/{provider}/{cluster}/{id}", parts.get_part, "Get a part of a node; in its id `/` is written %2F.", schemas.PartItem, tag="fleet"),
    Route("GET", "/v1/machines", machines.list_machines, "List Machines with their status.", Page[MachineView], query=_PAGED, refusals=(503,), tag="fleet"),
    Route("GET", "/v1/machines/{name}", machines.get_machine, "Get a Machine; in its name `/` is written %2F.", MachineView, refusals=(503,), tag="fleet"),
    Route("DELETE", "/v1/machines/{name}", machines.delete_machine, "Delete a Machine of the mesh. Guests that run go on.", None, 204, role="admin", refusals=(404, 503), tag="fleet"),
    Route("GET", "/v1/slots", machines.list_slots, "List slots of Machines with who has them.", Page[SlotView], query=(*_PAGED, *_OF_MACHINE), refusals=(503,), tag="fleet"),
    Route("GET", "/v1/guests", machines.list_guests, "List pods that have a slot of a Machine or wait for one.", Page[GuestView], query=(*_PAGED, *_OF_MACHINE), refusals=(503,), tag="fleet"),
    Route("GET", "/v1/placement/explain", placement.explain, "Explain a query for allocation candidates of the Placement interface, in its newest version: how many there are, or why there are none. Its parameters are those of the query, such as `resources_A` and `same_subtree`.", CandidatesExplained, refusals=(400, 503), tag="fleet"),
    Route("GET", "/v1/sim/clusters", fleet_commands.list_sim_clusters, "List simulated clusters.", dict[str, Any], query=(_PAGED[1],), refusals=(503,), tag="fleet"),
    Route("PUT", "/v1/sim/clusters", fleet_commands.put_fleet, "Replace the simulated fleet.", dict[str, Any], body=dict[str, Any], consumes=_DOCUMENTS, refusals=(409, 503), tag="fleet"),
    Route("POST", "/v1/sim/clusters", fleet_commands.put_fleet, "Replace the simulated fleet.", dict[str, Any], body=dict[str, Any], consumes=_DOCUMENTS, refusals=(409, 503), tag="fleet"),
    Route("POST", "/v1/sim/clusters/{provider}/{name}/fault", fleet_commands.inject_fault, "Inject a fault into a simulated cluster.", dict[str, Any], body=schemas.Misbehaviour, refusals=(503,), tag="fleet"),
)  # fmt: skip

_OF_CLUSTER = Query(
    "cluster", "The class that wins over the fleet's on this cluster, PROVIDER/NAME.", str, "lab/edge-1"
)
CLASSES = (
    Route("GET", "/v1/devices/algorithm", classes.get_algorithm, "Get the algorithm that chooses devices.", class_schemas.DeviceAlgorithmItem, tag="classes"),
    Route("POST", "/v1/devices/move", classes.move_devices, "Let pods leave devices of a cluster that failed together (MassFailure).", class_schemas.DevicesMoved, body=class_schemas.DevicesMoveEdit, refusals=(404, 503), role="admin", tag="classes"),
    Route("PUT", "/v1/devices/algorithm", classes.put_algorithm, "Set the algorithm that chooses devices where neither a need nor its class names one.", class_schemas.DeviceAlgorithmItem, body=class_schemas.DeviceAlgorithmEdit, refusals=(503,), role="admin", tag="classes"),
    Route("GET", "/v1/resource-classes", classes.list_objects, "List resource classes with their status.", Page[class_schemas.ResourceClassItem], query=(*_SELECTED, _OF_CLUSTER), tag="classes"),
    Route("GET", "/v1/resource-classes/{name}", classes.get_object, "Get a resource class with its status.", class_schemas.ResourceClassItem, query=(_OF_CLUSTER,), tag="classes", etag="response"),
    Route("DELETE", "/v1/resource-classes/{name}", classes.delete_object, "Delete a resource class. Devices that are held through it stay held.", None, 204, query=(_OF_CLUSTER,), refusals=(503,), role="admin", tag="classes", etag="request"),
    Route("POST", "/v1/resource-classes/explain", classes.explain, "Explain which devices a class selects: how many meet each requirement, and which one comes nearest. The class need not be stored.", class_schemas.ClassExplained, body=class_schemas.ExplainClass, refusals=(404, 503), role="viewer", tag="classes"),
    *(
        route
        for plural, words in (("device-sources", "sources of devices"), ("device-quotas", "quotas of devices"), ("class-grants", "grants of classes"))
        for route in (
            Route("GET", f"/v1/{plural}", classes.list_objects, f"List {words}.", Page[class_schemas.FleetObjectItem], query=_SELECTED, tag="classes"),
            Route("GET", f"/v1/{plural}/{{name}}", classes.get_object, f"Get one of the {words}.", class_schemas.FleetObjectItem, tag="classes", etag="response"),
            Route("DELETE", f"/v1/{plural}/{{name}}", classes.delete_object, f"Delete one of the {words}.", None, 204, refusals=(503,), role="admin", tag="classes", etag="request"),
        )
    ),
)  # fmt: skip

DECISIONS = (
    Route("GET", "/v1/decisions", decisions.list_decisions, "List current decisions, or all that are remembered.", Page[schemas.DecisionItem], query=(*_PAGED, Query("group", "Only decisions of this group."), Query("all", "Also past decisions, with how they ended.", bool)), refusals=(503,), tag="decisions"),
    Route("GET", "/v1/decisions/{id}", decisions.get_decision, "Get a current or past decision.", schemas.DecisionItem, refusals=(503,), tag="decisions"),
    Route("GET", "/v1/decisions/{id}/candidates", decisions.get_decision_candidates, "List the answers that led to a decision, and the choices that were tried.", schemas.Candidates, query=(_NAMES,), refusals=(503,), tag="decisions"),
    Route("GET", "/v1/decisions/{id}/replay", decisions.replay_decision, "Decide again from the record of a decision, and compare.", Replay, refusals=(503,), tag="decisions"),
    Route("GET", "/v1/controllers", groups.list_controllers, "List controllers.", Page[schemas.ControllerItem], query=_PAGED, tag="decisions"),
    Route("GET", "/v1/controllers/{name}", groups.get_controller, "Get a controller.", schemas.ControllerItem, tag="decisions"),
    Route("PUT", "/v1/controllers/{name}", commands.put_controller, "Create, change or remove a controller.", schemas.ControllerItem, 200, (204,), body=schemas.ControllerEdit, refusals=(503,), tag="decisions"),
)  # fmt: skip

MESH = (
    Route(
        "GET",
        "/v1/events",
        events.get_events,
        "Stream events (server-sent; `Last-Event-ID` resumes), or list the last ones with `follow=false`. They are CloudEvents "
        "if Accept has application/cloudevents+json or application/cloudevents-batch+json, or with `format=cloudevents`.",
        Page[schemas.EventItem],
        produces=(JSON, SSE, cloudevents.BATCH),
        query=(
            Query("subject", "Subject filter with NATS wildcards. `moorage.rejected.>` selects rejected messages (administrators only).", str, "moorage.events.decisions.>"),
            Query("follow", "Stream new events (default: true).", bool),
            Query("limit", "Maximum number of past events with `follow=false`.", int),
            Query("format", "`cloudevents` returns CloudEvents in structured mode.", Literal["cloudevents", "plain"]),
            Query("lastEventId", "Same as the header Last-Event-ID."),
        ),
        refusals=(403, 503),
        tag="mesh",
    ),
    Route("GET", "/v1/story/{id}", events.get_story, "List a message and all messages that it caused.", Page[schemas.EventItem], tag="mesh"),
    Route("GET", "/v1/health", health.get_health, "Get the health of workers, controllers, clusters and groups.", schemas.Health, tag="mesh"),
    Route("GET", "/v1/subjects", health.list_subjects, "List all NATS subjects.", Page[schemas.SubjectRow], tag="mesh"),
    Route("GET", "/v1/whoami", token_routes.get_caller, "Get the name, role and projects of the request's token.", schemas.Me, tag="access"),
    Route("GET", "/v1/tokens", token_routes.list_tokens, "List tokens without their secrets.", Page[schemas.TokenItem], query=_PAGED, role="admin", tag="access"),
    Route("POST", "/v1/tokens", token_routes.create_token, "Create a token; only this response has its text.", schemas.TokenMade, 201, body=TokenRequest, refusals=(409, 503), role="admin", tag="access"),
    Route("GET", "/v1/tokens/{name}", token_routes.get_token, "Get a token without its secret.", schemas.TokenItem, role="admin", tag="access"),
    Route("DELETE", "/v1/tokens/{name}", token_routes.revoke_token, "Revoke a token immediately.", None, 204, refusals=(503,), role="admin", tag="access"),
)  # fmt: skip

V1: tuple[Route, ...] = (*OPEN, *DOCUMENTS, *GROUPS, *FLEET, *CLASSES, *DECISIONS, *MESH)
