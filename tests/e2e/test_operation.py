"""Tests what operators use: one trace from the request to the pods, metrics of each worker under load, alerts and dashboard
with existing metrics, JSON logs without secrets."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

import moorage.cli
from moorage.bus import new_id
from moorage.mesh.discovery import installed
from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh
from moorage_testkit.otlp_collector import OtlpCollector, Span
from moorage_testkit.polling import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(moorage.cli.__file__).parent / "example"
CONTROLLERS = {spec.name for spec in installed().builtin_controllers}
#: The documents here have no placement, affinity, devices of classes nor machines, and their fleet has no zones.
CONCERNED = {"hpa"}
#: Workers that answer requests about each of them.
ASKED = {"intents", "inventory", "merger", "patcher", *CONCERNED}
GROUPS = 20

Scraped = dict[str, dict[str, Metric]]  # worker → name of the family → family


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector() as collector:
        yield collector


@pytest.fixture(scope="module")
def mesh(collector: OtlpCollector) -> Iterator[Mesh]:
    """Runs a mesh with traces under some load."""
    mesh = Mesh("--fleet", str(EXAMPLE / "fleet.yaml"))
    mesh.environment |= collector.env
    with mesh:
        for number in range(GROUPS):
            mesh.http("/v1/apply", application(f"load-{number}"))
        impossible = application("impossible", cpu="5000")
        mesh.http("/v1/apply", impossible)
        until(lambda: phases(mesh).count("Running") == GROUPS, "all groups run")
        until(lambda: phases(mesh).count("Pending") == 1, "the other one waits")
        yield mesh


until = partial(wait_until, within=60)


def phases(mesh: Mesh) -> list[str]:
    return [group["phase"] for group in mesh.http("/v1/groups?limit=200")["items"]]


def application(name: str, cpu: str = "10m") -> dict[str, Any]:
    container = {"name": "main", "image": "registry.example/app", "resources": {"requests": {"cpu": cpu}}}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
        },
    }
    document = yaml.safe_load((EXAMPLE / "application.yaml").read_text().split("\n---")[0])
    return {
        "apiVersion": document["apiVersion"],
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"apps": [{"name": "main", "manifests": [manifest]}]},
    }


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module")
def scraped(mesh: Mesh) -> Scraped:
    found: Scraped = {}
    for kind, urls in mesh.endpoint["metrics"].items():
        status, text = get(urls[0])
        assert status == 200
        found[kind] = {family.name: family for family in text_string_to_metric_families(text)}
    return found


def value(family: Metric, sample: str, **labels: str) -> float:
    matching = [s.value for s in family.samples if s.name == sample and labels.items() <= s.labels.items()]
    assert matching, f"{sample} {labels} is not among {family.samples}"
    return sum(matching)


# --- traces


def test_one_trace_covers_instantiate_up_to_the_pods(mesh: Mesh, collector: OtlpCollector) -> None:
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    rest = HttpClient(mesh, "/v1")
    document = yaml.safe_load((EXAMPLE / "application.yaml").read_text())
    answered = rest("POST", "/apply", document, traceparent=f"00-{trace}-{caller}-01")
    assert answered.status == 200, answered
    begin = ["gateway POST /v1/apply", "gateway request moorage.intents.apply", "intents handle moorage.intents.apply"]
    decide = [*begin, "merger handle moorage.groups.decide"]
    patch = [*decide, "patcher patch"]
    wanted = [
        [*decide, "merger propose"],
        [*decide, "merger commit"],
        [*patch, "patcher ask hpa", "hpa handle moorage.controllers.hpa.actions"],
        [*patch, "sim apply", "patcher confirm"],
        [*patch, "patcher running"],
    ]
    wanted += [
        [*decide, "merger ask", f"merger ask {name}", f"{name} handle moorage.controllers.{name}.candidates"]
        for name in CONCERNED
    ]
    until(lambda: all(path in paths(collector.of(trace), caller) for path in wanted), "all of it was exported")
    until(lambda: all(one[0] == begin[0] for one in paths(collector.of(trace), caller)), "no span without its parent")
    applied = [span.attributes["moorage.app"] for span in collector.of(trace).values() if span.name == "apply"]
    assert sorted(applied) == sorted(app["name"] for app in document["spec"]["apps"])


def paths(spans: dict[str, Span], caller: str) -> list[list[str]]:
    """Returns each span with its ancestors, the outermost first."""

    def path(span: Span) -> list[str]:
        named = f"{span.service.removeprefix('moorage-')} {span.name}"
        if span.parent == caller:
            return [named]
        return [*path(spans[span.parent]), named] if span.parent in spans else ["nobody's", named]

    return [path(span) for span in spans.values()]


def test_one_trace_covers_terminate_up_to_the_pods(mesh: Mesh, collector: OtlpCollector) -> None:
    trace, caller = new_trace(), "4" * 16
    rest = HttpClient(mesh, "/v1")
    group = rest("POST", "/apply", application("ends")).body["group"]
    until(lambda: any(g["group"] == group and g["phase"] == "Running" for g in items(mesh)), "it runs")
    answered = rest("POST", f"/groups/{group}/terminate", {}, traceparent=f"00-{trace}-{caller}-01")
    assert answered.status == 202, answered
    end = ["gateway POST /v1/groups/{project}/{app}/{version}/{group}/{verb}", "gateway request moorage.intents.act"]
    end += ["intents handle moorage.intents.act", "merger handle moorage.groups.withdraw", "patcher take away"]
    wanted = [[*end, "sim apply", "patcher confirm"], [*end, "patcher terminating"]]
    until(lambda: all(path in paths(collector.of(trace), caller) for path in wanted), "all of it was exported")


def test_events_carry_the_trace(mesh: Mesh) -> None:
    trace = new_trace()
    answered = HttpClient(mesh, "/v1")("POST", "/apply", application("traced"), traceparent=f"00-{trace}-{'1' * 16}-01")
    assert answered.status == 200, answered
    until(
        lambda: any(g["group"].startswith("default/traced/") and g["phase"] == "Running" for g in items(mesh)),
        "it runs",
    )
    done = mesh.run("story", "traced", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert trace in done.stdout.decode()


def new_trace() -> str:
    return new_id().encode().hex()[:32]


def items(mesh: Mesh) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = mesh.http("/v1/groups?limit=200")["items"]
    return found


# --- metrics


def test_each_worker_is_live_and_ready(mesh: Mesh) -> None:
    assert {*installed().workers, "agents"} == mesh.endpoint["metrics"].keys()
    for urls in mesh.endpoint["metrics"].values():
        base = urls[0].removesuffix("/metrics")
        assert get(base + "/livez") == (200, "ok\n")
        until(lambda base=base: get(base + "/readyz") == (200, "ok\n"), base)  # type: ignore[misc]


def test_metrics_count_the_load(scraped: Scraped) -> None:
    merger = scraped["merger"]
    decisions = merger["moorage_decisions"]
    assert value(decisions, "moorage_decisions_total", outcome="placed") >= GROUPS
    assert value(decisions, "moorage_decisions_total", outcome="pending") >= 1
    for step in ("ask", "propose", "commit"):
        steps = merger["moorage_deciding_duration_seconds"]
        count = value(steps, "moorage_deciding_duration_seconds_count", step=step)
        assert count >= GROUPS
        assert value(steps, "moorage_deciding_duration_seconds_bucket", step=step, le="+Inf") == count
    for name in CONTROLLERS:
        asks = merger["moorage_asks"]
        outcome = "answered" if name in CONCERNED else "skipped"
        assert value(asks, "moorage_asks_total", controller=name, outcome=outcome) >= GROUPS
        assert value(asks, "moorage_asks_total", controller=name, outcome="timeout") >= 0
    waiting = merger["moorage_pending_groups"]
    assert [sample.value for sample in waiting.samples] == [1]
    assert value(merger["moorage_clusters"], "moorage_clusters", state="Ready") == 6
    for resource in ("cpu", "memory", "nvidia.com/gpu"):
        kinds = ("free", "claimed", "requested", "allocatable")
        free, claimed, requested, all_of_it = (
            value(merger[f"moorage_fleet_{kind}"], f"moorage_fleet_{kind}", resource=resource) for kind in kinds
        )
        assert free + claimed + requested == pytest.approx(all_of_it) and free > 0
    assert value(merger["moorage_fleet_allocatable"], "moorage_fleet_allocatable", resource="cpu") == 152
    assert value(scraped["patcher"]["moorage_rollouts"], "moorage_rollouts", phase="Running") >= GROUPS
    assert value(scraped["intents"]["moorage_groups"], "moorage_groups", state="Instantiated") >= GROUPS + 1
    assert value(scraped["sim"]["moorage_sim_clusters"], "moorage_sim_clusters", state="known") == 6
    posts = scraped["gateway"]["moorage_http_requests"]
    assert value(posts, "moorage_http_requests_total", route="/v1/apply", status="200") >= GROUPS
    for kind, families in scraped.items():
        answered = sum(s.value for s in families["moorage_requests"].samples if s.labels["outcome"] == "answered")
        assert answered >= (GROUPS if kind in ASKED else 0)
        failed = sum(s.value for s in families["moorage_requests"].samples if s.labels["outcome"] == "failed")
        assert failed == 0
        assert value(families["moorage_worker_info"], "moorage_worker_info", worker=kind) == 1


def test_names_and_help_follow_the_conventions(scraped: Scraped) -> None:
    """https://prometheus.io/docs/practices/naming/, as `promtool check metrics` sees it."""
    units = re.compile(r"_(ms|millis|milliseconds|minutes|hours|kb|kilobytes|mb|percent|milli)(_|$)")
    for kind, families in scraped.items():
        for name, family in families.items():
            assert re.fullmatch(r"(moorage|process)_[a-z0-9_]+", name), name
            assert not units.search(name), f"{name}: base units only"
            assert family.documentation, name
            assert name.startswith("process_") or not family.documentation.endswith("."), f"{kind} {name}: help"
            for sample in family.samples:
                total = sample.name.endswith("_total")
                assert total == (family.type == "counter"), f"{sample.name} is a {family.type}"
                assert not re.search(r"_(counter|gauge|histogram)$", name), name
                assert len(sample.labels) <= 4
                for label in sample.labels:
                    assert re.fullmatch(r"[a-z]+", label), f"{name}: label {label}"
                    assert name.endswith("_info") or label not in name.split("_"), f"{name}: label {label}"
            if family.type == "histogram":
                assert name.endswith("_seconds"), name


def exported(scraped: Scraped) -> dict[str, Metric]:
    """Returns metrics by the names that queries use. Those of agents come from their source, as this mesh has no agents."""
    found: dict[str, Metric] = {}
    for families in scraped.values():
        for family in families.values():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
            found |= {family.name + suffix: family for suffix in suffixes}
    return found


def test_alerts_and_dashboard_use_existing_metrics(scraped: Scraped) -> None:
    known = exported(scraped)
    everything = [family for families in scraped.values() for family in families.values()]
    labels = {label for family in everything for sample in family.samples for label in sample.labels}
    labels |= {"job", "instance", "le", "reason", "incident"}
    rules = yaml.safe_load((ROOT / "ops/monitoring/alerts.yaml").read_text())["groups"][0]["rules"]
    dashboard = json.loads((ROOT / "ops/monitoring/dashboard.json").read_text())
    queries = [rule["expr"] for rule in rules]
    queries += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 30
    for query in queries:
        names = set(re.findall(r"\b(?:moorage|process)_\w+", query))
        assert names, query
        assert names <= known.keys(), f"{query}: {names - known.keys()}"
        used = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!=|=|!~)", query))
        for grouped in re.findall(r"\bby \(([^)]*)\)", query):
            used |= {label.strip() for label in grouped.split(",")}
        assert used <= labels, f"{query}: {used - labels}"
        assert query.count("(") == query.count(")")
    for rule in rules:
        assert rule["labels"]["severity"] in ("info", "warning", "critical") and rule["annotations"]["summary"]


def test_every_container_is_scraped() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    workers = {name: s["environment"] for name, s in services.items() if s.get("restart") and "environment" in s}
    wanted = {f"{name}:{environment['MOORAGE_METRICS'].split(':')[1]}" for name, environment in workers.items()}
    (job,) = yaml.safe_load((ROOT / "ops/monitoring/prometheus.yaml").read_text())["scrape_configs"]
    assert set(job["static_configs"][0]["targets"]) == wanted and len(wanted) >= 12


def test_every_metric_is_documented(scraped: Scraped) -> None:
    rows: dict[str, list[str]] = {}
    for kind, families in scraped.items():
        for family in families.values():
            if family.name.startswith("moorage_"):
                name = family.name + ("_total" if family.type == "counter" else "")
                about = f"| `{name}` | {family.type} | {family.documentation} |"
                rows.setdefault(about, []).append(kind)
    everyone = len(scraped)
    wanted = [
        f"{about} {'all' if len(kinds) == everyone else ', '.join(sorted(kinds))} |"
        for about, kinds in sorted(rows.items())
    ]
    page = (ROOT / "docs/operation.md").read_text()
    found = [line for line in page.splitlines() if line.startswith("| `moorage_") and "_agent_" not in line]
    assert found == wanted, "\n" + "\n".join(wanted)
    source = "".join(path.read_text() for path in (ROOT / "services/moorage/agent").glob("*.py"))
    assert set(re.findall(r"moorage_agent_\w+", page)) == set(re.findall(r"moorage_agent_\w+", source))


# --- logs


def test_log_lines_are_json_without_secrets(mesh: Mesh) -> None:
    secrets = json.loads((mesh.state / "secrets.json").read_text())
    hidden = [secrets["token"], *secrets["seeds"].values(), *secrets["redis"].values()]
    lines = 0
    for kind in mesh.endpoint["metrics"]:
        for path in (mesh.state / "logs").glob(f"{kind}*.log"):
            text = path.read_text()
            assert not any(secret in text for secret in hidden), path
            for line in text.splitlines():
                entry = json.loads(line)
                assert entry["worker"] == kind and entry["level"] and entry["event"] and entry["timestamp"]
                lines += 1
    assert lines >= 3


# --- tests that change the mesh come last


def test_a_waiting_group_keeps_its_trace(mesh: Mesh, collector: OtlpCollector) -> None:
    """No cluster has capacity; then one does."""
    trace, caller = new_trace(), "2" * 16
    rest = HttpClient(mesh, "/v1")
    document = application("waits", cpu="900")
    assert rest("POST", "/apply", document, traceparent=f"00-{trace}-{caller}-01").status == 200
    until(lambda: any(path[-1] == "merger propose" for path in paths(collector.of(trace), caller)), "it was tried")
    fleet = yaml.safe_load((EXAMPLE / "fleet.yaml").read_text())
    node = {"name": "huge", "count": 1, "allocatable": {"cpu": "1000", "memory": "64Gi"}}
    fleet["clusters"].append({"name": "large", "provider": "lab", "nodes": [node]})
    mesh.http("/v1/sim/clusters", fleet, method="PUT")
    again = ["gateway POST /v1/apply", "gateway request moorage.intents.apply", "intents handle moorage.intents.apply"]
    again += ["merger decide again", "patcher patch", "sim apply"]
    until(lambda: again in paths(collector.of(trace), caller), "it was placed and applied")


def test_restarts_are_counted(mesh: Mesh) -> None:
    url = mesh.endpoint["metrics"]["labels"][0]
    mesh.kill("labels")

    def counted() -> bool:
        with contextlib.suppress(OSError):
            return "moorage_worker_restarts_total 1.0" in get(url)[1]
        return False

    until(counted, "it is found again at the same address")
    until(lambda: get(url.removesuffix("/metrics") + "/readyz")[0] == 200, "it is ready again")
