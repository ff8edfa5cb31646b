"""Every route of `/v1` and beside it, in one table."""

from __future__ import annotations

from typing import Any, Literal

from moorage.model.attempts import Why
from moorage.model.desired import DiffReply
from moorage.model.documents import IntentDocument

from . import api_docs, candidates, cloudevents, clusters, commands, events, groups, health, token_routes
from .core import schemas
from .core.schemas import Page
from .route import JSON, SSE, TEXT, YAML, Query, Route
from .tokens import TokenRequest

_GROUP = "/v1/groups/{project}/{app}/{version}/{group}"
_PAGED = (
    Query("limit", "How many at most in one page; 0: all.", int),
    Query("continue", "Where the page begins: what the one before answered."),
)
_SELECTED = (*_PAGED, Query("labelSelector", "As kubectl has it: `a=b,c!=d,e in (f,g),!h`.", str, "region=eu"))
_PROJECT = Query("project", "Only of this project.")
_NAMES = Query("names", "How many clusters to name of each set.", int)
_DOCUMENTS = (JSON, YAML)

OPEN = (
    Route("GET", "/livez", health.livez, "We run", str, gives=(TEXT,), role="nobody", tag="health"),
    Route(
        "GET",
        "/readyz",
        health.readyz,
        "Groups can be shown and documents taken; says what is missing",
        str,
        gives=(TEXT,),
        role="nobody",
        refusals=(503,),
        tag="health",
    ),
    Route("GET", "/metrics", health.metrics, "For Prometheus", str, gives=(TEXT,), role="nobody", tag="health"),
    Route("GET", "/openapi.json", api_docs.openapi, "This document", dict[str, Any], role="nobody", tag="description"),
    Route("GET", "/docs", api_docs.docs, "This document as a page", str, gives=("text/html",), role="nobody", tag="description"),
)  # fmt: skip

DOCUMENTS = (
    Route(
        "POST",
        "/v1/apply",
        commands.apply,
        "Store documents and act on them: durable when answered",
        schemas.Applied | schemas.AppliedAll,
        body=schemas.Document,
        takes=_DOCUMENTS,
        query=(Query("dryRun", "Nothing is stored; answered is what would be.", bool),),
        refusals=(403, 404, 409, 503),
        role="viewer",
        tag="documents",
        etag="takes",
    ),
    Route(
        "POST",
        "/v1/simulate",
        commands.simulate,
        "Decide documents without storing or claiming anything",
        Why | schemas.WhyAll,
        body=schemas.Document,
        takes=_DOCUMENTS,
        refusals=(403, 404, 409, 503),
        role="viewer",
        tag="documents",
    ),
    Route("GET", "/v1/applications", groups.applications, "Applications with their status", Page[schemas.ApplicationItem], query=(*_SELECTED, _PROJECT), tag="documents"),
    Route("GET", "/v1/applications/{project}/{name}", groups.application, "One application", schemas.ApplicationItem, tag="documents", etag="gives"),
    Route("DELETE", "/v1/applications/{project}/{name}", commands.delete_application, "Take it off its clusters, then forget it", schemas.Leaving, 202, (204,), tag="documents", etag="takes"),
    Route("GET", "/v1/intents", groups.intents, "Intents of their own", Page[IntentDocument], query=(*_SELECTED, _PROJECT, Query("kind", "Only of this kind.", str, "HpaIntent")), tag="documents"),
    Route("GET", "/v1/intents/{kind}/{project}/{name}", groups.intent, "One intent", IntentDocument, tag="documents", refusals=(400,), etag="gives"),
    Route("DELETE", "/v1/intents/{kind}/{project}/{name}", commands.delete_intent, "Remove it; its group follows", None, 204, tag="documents", refusals=(400,), etag="takes"),
)  # fmt: skip

GROUPS = (
    Route("GET", "/v1/groups", groups.groups, "Groups", Page[schemas.GroupItem], query=(*_SELECTED, _PROJECT), tag="groups"),
    Route("GET", _GROUP, groups.group, "One group", schemas.GroupItem, tag="groups", etag="gives"),
    Route("DELETE", _GROUP, commands.delete_group, "Take it off its clusters, then forget it", schemas.Leaving, 202, (204,), tag="groups", etag="takes"),
    Route("GET", _GROUP + "/why", groups.group_why, "Why it is where it is, or nowhere yet", Why, tag="groups"),
    Route("GET", _GROUP + "/candidates", candidates.group_candidates, "The clusters that may take each app", schemas.Candidates, query=(_NAMES,), tag="groups"),
    Route("GET", _GROUP + "/story", events.group_story, "Every event of it, in order", Page[schemas.EventItem], query=(Query("limit", "How many of the last.", int),), tag="groups"),
    Route("GET", _GROUP + "/diff", groups.group_diff, "Its manifests and what is applied", DiffReply, tag="groups", refusals=(503,)),
    Route("POST", _GROUP + "/{verb}", commands.act, "A step of its life: " + ", ".join(commands.VERBS), schemas.Acted, 202, tag="groups", refusals=(400, 503)),
)  # fmt: skip

FLEET = (
    Route("GET", "/v1/clusters", clusters.clusters, "Clusters", Page[schemas.ClusterItem], query=(*_SELECTED, Query("view", "`name`: only names and states.", Literal["name", "full"])), tag="fleet"),
    Route("GET", "/v1/clusters/{provider}/{name}", clusters.cluster, "One cluster, with the claims that count there", schemas.ClusterItem, tag="fleet"),
    Route("PATCH", "/v1/clusters/{provider}/{name}", commands.patch_cluster, "Cordon it, or set labels of its own", schemas.ClusterEdited, body=schemas.ClusterEdit, refusals=(503,), tag="fleet"),
    Route("DELETE", "/v1/clusters/{provider}/{name}", commands.delete_cluster, "Forget one that is dead: 409 while it reports, or claims count there", None, 204, query=(Query("abandonClaims", "Also where claims count: what stood there is decided anew, and what may still run there is left to itself.", bool),), refusals=(400, 409, 503), tag="fleet"),
    Route("GET", "/v1/nodes", clusters.nodes, "Nodes", Page[schemas.NodeItem], query=(*_SELECTED, Query("cluster", "Only of this one: PROVIDER/NAME.", str, "lab/edge-1")), refusals=(404,), tag="fleet"),
    Route("GET", "/v1/nodes/{provider}/{cluster}/{name}", clusters.node, "One node", schemas.NodeItem, tag="fleet"),
    Route("GET", "/v1/sim/clusters", commands.sim_clusters, "The simulated clusters", dict[str, Any], refusals=(503,), tag="fleet"),
    Route("PUT", "/v1/sim/clusters", commands.put_fleet, "Make the simulated fleet equal to this document", dict[str, Any], body=dict[str, Any], takes=_DOCUMENTS, refusals=(409, 503), tag="fleet"),
    Route("POST", "/v1/sim/clusters", commands.put_fleet, "The same", dict[str, Any], body=dict[str, Any], takes=_DOCUMENTS, refusals=(409, 503), tag="fleet"),
    Route("POST", "/v1/sim/clusters/{provider}/{name}/fault", commands.fault, "Have it misbehave for a while", dict[str, Any], body=schemas.Misbehaviour, refusals=(503,), tag="fleet"),
)  # fmt: skip

DECISIONS = (
    Route("GET", "/v1/decisions", groups.decisions, "Decisions that stand", Page[schemas.DecisionItem], query=(*_PAGED, Query("group", "Only of this group.")), tag="decisions"),
    Route("GET", "/v1/decisions/{id}", groups.decision, "One decision", schemas.DecisionItem, tag="decisions"),
    Route("GET", "/v1/decisions/{id}/candidates", candidates.decision_candidates, "The clusters that may take its apps now", schemas.Candidates, query=(_NAMES,), tag="decisions"),
    Route("GET", "/v1/controllers", groups.controllers, "Who is asked, how long, and what silence means", Page[schemas.ControllerItem], query=_PAGED, tag="decisions"),
    Route("GET", "/v1/controllers/{name}", groups.controller, "One controller", schemas.ControllerItem, tag="decisions"),
    Route("PUT", "/v1/controllers/{name}", commands.put_controller, "Change or add one", schemas.ControllerItem, 200, (204,), body=schemas.ControllerEdit, refusals=(503,), tag="decisions"),
)  # fmt: skip

MESH = (
    Route(
        "GET",
        "/v1/events",
        events.events,
        "Events as they come (server-sent; `Last-Event-ID` resumes), or the last ones with `follow=false`. As CloudEvents "
        "if Accept has application/cloudevents+json or application/cloudevents-batch+json, or with `format=cloudevents`",
        Page[schemas.EventItem],
        gives=(JSON, SSE, cloudevents.BATCH),
        query=(
            Query("subject", "Only these, with NATS wildcards. `moorage.rejected.>`: messages that could not be read (administrators).", str, "moorage.events.decisions.>"),
            Query("follow", "Go on with those that come.", bool),
            Query("limit", "How many of the last, with `follow=false`.", int),
            Query("format", "`cloudevents`: each one in structured mode.", Literal["cloudevents", "plain"]),
            Query("lastEventId", "As the header Last-Event-ID."),
        ),
        refusals=(403, 503),
        tag="mesh",
    ),
    Route("GET", "/v1/story/{id}", events.story, "A message and all it set off", Page[schemas.EventItem], tag="mesh"),
    Route("GET", "/v1/health", health.health, "Who answers, and who does not", schemas.Health, tag="mesh"),
    Route("GET", "/v1/subjects", health.subject_table, "The table of subjects", Page[schemas.SubjectRow], tag="mesh"),
    Route("GET", "/v1/whoami", token_routes.whoami, "Whose token this is", schemas.Me, tag="access"),
    Route("GET", "/v1/tokens", token_routes.many, "Tokens, without their secrets", Page[schemas.TokenItem], query=_PAGED, role="admin", tag="access"),
    Route("POST", "/v1/tokens", token_routes.create, "Make one; only this answer has it", schemas.TokenMade, 201, body=TokenRequest, refusals=(409, 503), role="admin", tag="access"),
    Route("GET", "/v1/tokens/{name}", token_routes.one, "One token, without its secret", schemas.TokenItem, role="admin", tag="access"),
    Route("DELETE", "/v1/tokens/{name}", token_routes.revoke, "Revoke it: at once, everywhere", None, 204, refusals=(503,), role="admin", tag="access"),
)  # fmt: skip

V1: tuple[Route, ...] = (*OPEN, *DOCUMENTS, *GROUPS, *FLEET, *DECISIONS, *MESH)
