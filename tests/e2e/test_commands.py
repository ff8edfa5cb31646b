"""Runs every command against a mesh, and checks its output in every format and its exit code."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

GROUP = "default/app1/v1/default"

FITS = """
apiVersion: moorage.dev/v1alpha1
kind: Application
metadata: {name: %s, labels: {team: blue}}
spec:
  apps:
    - name: web
      manifests:
        - apiVersion: apps/v1
          kind: Deployment
          metadata: {name: web}
          spec:
            replicas: 1
            selector: {matchLabels: {app: web}}
            template:
              metadata: {labels: {app: web}}
              spec: {containers: [{name: nginx, image: nginx}]}
      consumers:
        - object: {apiVersion: apps/v1, kind: Deployment, name: web}
          container: nginx
          needs: [{resource: cpu, requests: %s}]
"""


def fits(name: str, cpu: str = "500m") -> bytes:
    return (FITS % (name, cpu)).encode()


def ran(mesh: Mesh, *arguments: str, data: bytes | None = None, code: int = 0) -> str:
    done = mesh.run(*arguments, data=data)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout.decode()}\n{done.stderr.decode()}"
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stdout, "colour where no terminal is"
    return done.stdout.decode()


def shown(mesh: Mesh, *arguments: str, data: bytes | None = None, code: int = 0) -> Any:
    return json.loads(ran(mesh, *arguments, "-o", "json", data=data, code=code))


def refused(mesh: Mesh, *arguments: str, code: int, data: bytes | None = None) -> str:
    done = mesh.run(*arguments, data=data)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout.decode()}\n{done.stderr.decode()}"
    text = done.stderr.decode()
    assert text and "Traceback" not in text
    return text


def told(mesh: Mesh, name: str) -> None:
    """Waits until the reasons have numbers. On a busy machine a controller may not answer in time, and is asked again."""
    wait_until(lambda: "ResourceShort" in ran(mesh, "why", name), f"{name} is told what it needs")


def test_hints_name_the_state_directory(example: Mesh) -> None:
    assert f"export MOORAGE_STATE={example.state}" in example.output().decode()


def test_the_example_runs_and_why_explains_it(example: Mesh) -> None:
    ran(example, "wait", "app1", "--for", "phase=Running", "--timeout", "90s")
    why = shown(example, "why", "app1")
    assert why["group"] == GROUP and why["state"] == "Instantiated" and why["phase"] == "Running"
    assert why["apps"]["fwall"]["clusters"] == ["lab/edge-3"] and why["apps"]["analytics"]["clusters"] == [
        "telco/pop-1"
    ]
    others = dict.fromkeys(("labels", "affinity", "topology", "resource-class", "machine"), "skipped")
    assert {c["name"]: c["outcome"] for c in why["controllers"]} == {"hpa": "answered", **others}
    assert "labels not concerned" in ran(example, "why", "app1")
    assert why == example.http(f"/v1/groups/{GROUP}/why")
    assert "lab/edge-3" in ran(example, "why", GROUP)
    assert b"fwall  1 of 1: lab/edge-3" in example.output(), "up itself shows what runs where"


@pytest.mark.parametrize(
    "kind", ["applications", "app", "groups", "group", "clusters", "nodes", "no", "decisions", "controllers", "intents"]
)
def test_lists_have_every_output_format(example: Mesh, kind: str) -> None:
    items = shown(example, "get", kind)["items"]
    names = ran(example, "get", kind, "-o", "name").split()
    assert len(names) == len(items)
    table, wide = ran(example, "get", kind), ran(example, "get", kind, "-o", "wide")
    if items:
        assert len(table.splitlines()) == len(items) + 1
        assert len(wide.splitlines()[0].split()) >= len(table.splitlines()[0].split())
    assert "items:" in ran(example, "get", kind, "-o", "yaml")


def test_single_objects_have_every_output_format(example: Mesh) -> None:
    assert shown(example, "get", "app", "app1")["status"]["phase"] == "Running"
    assert shown(example, "get", f"group/{'app1'}")["group"] == GROUP
    cluster = shown(example, "get", "cluster", "lab/edge-3")
    assert cluster["state"] == "Ready" and cluster["labels"]["region"] == "eu" and cluster["allocatable"]["cpu"] == "32"
    assert cluster["free"]["cpu"] == "27", "free is after claims: 4 of fwall, 1 of api-server"
    assert {c["app"] for c in cluster["claims"]} == {"fwall"}
    assert shown(example, "get", "node", "lab/edge-3/gpu-node")["free"]["nvidia.com/gpu"] == "0"
    decision = shown(example, "get", "decisions", "--group", "app1")["items"][0]
    assert shown(example, "get", "decision", decision["id"]) == decision
    assert decision["seq"] >= 1 and decision["claims"][0]["slots"][0]["count"] == 1
    assert [c["id"] for c in shown(example, "get", "clusters", "-l", "region=eu,site!=hamburg")["items"]] == [
        "lab/edge-2",
        "lab/edge-3",
    ]
    assert len(shown(example, "get", "nodes", "--cluster", "lab/edge-3")["items"]) == 3
    assert shown(example, "cluster", "get", "lab/edge-3")["id"] == "lab/edge-3"
    assert len(shown(example, "cluster")["items"]) == len(shown(example, "fleet")["items"]) == 6


def test_describe_is_readable(example: Mesh) -> None:
    assert "last events" in ran(example, "describe", "group", "app1")
    assert "lab/edge-3" in ran(example, "describe", "application/app1")
    text = ran(example, "cluster", "describe", "lab/edge-3")
    assert "gpu" in text and "StatefulSet/core-fwall" in text


def test_unknown_objects_exit_with_3(example: Mesh) -> None:
    for arguments in (
        ("get", "app", "nope"),
        ("get", "group", "a/b/c/d"),
        ("get", "cluster", "x/y"),
        ("get", "node", "lab/edge-3/zz"),
        ("get", "decision", "zz"),
        ("get", "controller", "zz"),
        ("get", "hpaintent", "zz"),
        ("why", "nope"),
        ("candidates", "nope"),
        ("story", "nope"),
        ("diff", "nope"),
        ("describe", "app", "nope"),
        ("terminate", "nope"),
        ("delete", "app", "nope"),
        ("wait", "nope", "--for", "phase=Placed", "--timeout", "1s"),
        ("fleet", "fault", "x/y", "silent"),
    ):
        assert "does not exist" in refused(example, *arguments, code=3)


def test_invalid_names_exit_with_2(example: Mesh, tmp_path: Path) -> None:
    for arguments in (
        ("cluster", "drain", "nope"),
        ("cluster", "cordon", "nope"),
        ("describe", "cluster", "nope"),
        ("restore", "nofile"),
        ("apply", "-f", "nofile"),
        ("cluster", "join", "--kubeconfig", "/nope"),
        ("cluster", "leave", "a/b", "--provider", "c"),
        ("agent", "--kubeconfig", "/nope"),
    ):
        text = refused(example, *arguments, code=2)
        assert len(text.splitlines()) == 1 and ("'nope'" in text or "does not exist" in text or "--provider" in text), (
            text
        )
    example.environment["MOORAGE_URL"] = example.endpoint["http"]
    try:
        assert "MOORAGE_NATS_URL" in refused(example, "backup", str(tmp_path / "other"), code=2)
        assert "set MOORAGE_TOKEN" in refused(example, "get", "groups", code=5)
    finally:
        del example.environment["MOORAGE_URL"]
    assert not (tmp_path / "other").exists()
    assert "redecide" not in refused(example, "approve", "app1", code=4)
    assert "neither the id of a stored message" in refused(example, "story", "01nothing", code=3)


def test_resource_types_have_aliases(example: Mesh) -> None:
    for one in ("get", "list"):
        assert ran(example, "controllers", one) == ran(example, "controllers")
        assert ran(example, "fleet", one, "-o", "name") == ran(example, "fleet", "-o", "name")
    assert ran(example, "controllers", "get", "hpa", "-o", "name") == "controller/hpa\n"


def test_diff_shows_patches_and_exits_with_1(example: Mesh) -> None:
    text = ran(example, "diff", "app1", code=1)
    assert "+            nvidia.com/gpu: '1'" in text and "moorage.dev/claim" in text
    items = shown(example, "diff", "app1", code=1)["items"]
    assert {i["cluster"] for i in items} == {"lab/edge-3", "telco/pop-1"}


def test_candidates_are_printed_in_the_seed_format(example: Mesh) -> None:
    found = shown(example, "candidates", "app1")
    assert {c["name"] for c in found["controllers"]} >= {
        "hpa",
        "labels",
        "affinity",
        "topology",
        "resource-class",
        "machine",
    }
    # The example has all exclusive cores of the only cluster where it fits.
    (one,) = found["merged"]["fwall"]
    assert one["mode"] == "allow" and "lab/edge-3" in one["clusters"]
    (one,) = found["merged"]["analytics"]
    assert (one["count"], one["mode"], one["clusters"]) == (1, "allow", ["telco/pop-1"])
    assert "analytics: 1: telco/pop-1" in ran(example, "candidates", "app1")
    decision = shown(example, "get", "decisions")["items"][0]["id"]
    assert example.http(f"/v1/decisions/{decision}/candidates")["decision"] == decision


def test_story_lists_every_message_in_order(example: Mesh) -> None:
    items = shown(example, "story", "app1")["items"]
    kinds = [i["subject"].split(".")[3] for i in items]
    assert kinds[0] == "accepted" and kinds.index("placed") < kinds.index("running")
    by_id = shown(example, "story", items[0]["id"])["items"]
    assert [i["id"] for i in by_id] == [i["id"] for i in items], "the first message set off all the others"


def test_events_prints_past_and_new_events(example: Mesh) -> None:
    items = shown(example, "events", "--subject", "moorage.events.fleet.joined.>")["items"]
    assert len(items) >= 6 and set(items[0]) == {"id", "cause", "time", "subject", "data"}
    refused(example, "events", "--subject", "moorage.intents.>", code=1)
    command = [
        sys.executable,
        "-m",
        "moorage.cli",
        "events",
        "-f",
        "-o",
        "json",
        "--subject",
        "moorage.events.intents.>",
    ]
    env = {**os.environ, "MOORAGE_STATE": str(example.state)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        try:
            end = time.monotonic() + 60
            seen: dict[str, Any] = {}
            number = 0
            while not seen and time.monotonic() < end:  # until it is subscribed; each change is an event
                number += 1
                ran(example, "apply", "-f", "-", data=fits("heard", f"{number}m"))
                os.set_blocking(follower.stdout.fileno(), False)
                if line := follower.stdout.readline():
                    seen = json.loads(line)
            assert seen["subject"].endswith(".default.heard.v1.default")
        finally:
            follower.terminate()
    ran(example, "delete", "app", "heard")


def test_events_follow_begins_with_recent_events(example: Mesh) -> None:
    last = [e["id"] for e in shown(example, "events", "--subject", "moorage.events.fleet.joined.>")["items"]][-2:]
    env = {**os.environ, "MOORAGE_STATE": str(example.state)}

    def first(lines: int, *more: str) -> list[str]:
        command = [sys.executable, "-m", "moorage.cli", "events", "-f", "--subject", "moorage.events.fleet.joined.>"]
        with subprocess.Popen([*command, *more], env=env, stdout=subprocess.PIPE) as follower:
            assert follower.stdout is not None
            try:
                return [follower.stdout.readline().decode().strip() for _ in range(lines)]
            finally:
                follower.terminate()

    assert first(2, "--limit", "2", "-o", "name") == last
    table = first(3)
    assert table[0].startswith("TIME") and "fleet.joined" in table[1] and "fleet.joined" in table[2]


def test_an_application_goes_through_its_life_cycle(example: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_bytes(fits("shop"))
    assert "created" in ran(example, "apply", "-f", str(file))
    assert ran(example, "apply", "-f", str(file)).strip() == "application/shop unchanged, revision 1"
    ran(example, "wait", "shop", "--for", "phase=Placed", "--timeout", "90s")
    ran(example, "wait", "shop", "--for", "phase=Running", "--timeout", "90s")
    assert [g["group"] for g in shown(example, "get", "groups", "-l", "team=blue")["items"]] == [
        "default/shop/v1/default"
    ]
    assert "is Instantiated" in refused(example, "approve", "shop", code=4)
    file.write_bytes(fits("shop", "750m"))
    assert "updated, revision 2" in ran(example, "apply", "-f", str(file))
    document = ran(example, "get", "app", "shop", "-o", "yaml").encode()
    assert "unchanged" in ran(example, "apply", "-f", "-", data=document), "what get shows can be applied"
    assert "terminated" in ran(example, "terminate", "shop")
    ran(example, "wait", "shop", "--for", "phase=Terminated", "--timeout", "90s")
    refused(example, "terminate", "shop", code=4)
    ran(example, "instantiate", "shop")
    ran(example, "wait", "shop", "--for", "phase=Running", "--timeout", "90s")
    ran(example, "delete", "-f", str(file))
    refused(example, "get", "app", "shop", code=3)
    ran(example, "wait", "shop", "--for", "delete", "--timeout", "90s")


def test_projects_separate_names(example: Mesh) -> None:
    document = fits("twin").replace(b"{name: twin,", b"{name: twin, project: other,")
    ran(example, "apply", "-f", "-", data=document)
    refused(example, "get", "app", "twin", code=3)
    assert shown(example, "get", "app", "twin", "-p", "other")["status"]["group"] == "other/twin/v1/default"
    assert [g["group"] for g in shown(example, "get", "groups", "-p", "other")["items"]] == ["other/twin/v1/default"]
    ran(example, "wait", "twin", "-p", "other", "--for", "phase=Running", "--timeout", "90s")
    ran(example, "delete", "-f", "-", data=document)
    refused(example, "why", "other/twin/v1/default", code=3)


def test_delete_without_waiting(example: Mesh) -> None:
    ran(example, "apply", "-f", "-", data=fits("brief"))
    ran(example, "wait", "brief", "--for", "phase=Running", "--timeout", "90s")
    ran(example, "delete", "application", "brief", "--wait=false")
    ran(example, "wait", "brief", "--for", "delete", "--timeout", "90s")


def test_a_pending_group_has_reasons_with_numbers(example: Mesh) -> None:
    ran(example, "apply", "-f", "-", data=fits("huge", '"900"'))
    ran(example, "wait", "huge", "--for", "phase=Pending", "--timeout", "90s")
    told(example, "huge")
    why = shown(example, "why", "huge")
    reasons = {r["code"]: r for r in why["reasons"]}
    assert (reasons["ResourceShort"]["needed"], reasons["ResourceShort"]["need"]) == ("900", "cpu"), why["reasons"]
    assert "decision" not in why and why["blocking"] == ["web"]
    (step,) = why["funnel"]["web"]["steps"]
    assert (step["name"], step["code"], step["left"], step["by"]) == ("cpu", "ResourceShort", 0, "hpa")
    assert shown(example, "simulate", "-f", "-", data=fits("huge2", '"900"'), code=1)["funnel"] == why["funnel"]
    assert "web  6 clusters → 0 cpu; needs 1" in ran(example, "why", "huge")
    assert "ResourceShort" in ran(example, "why", "huge")
    assert "is not Placed after 0.3 s" in refused(
        example, "wait", "huge", "--for", "phase=Placed", "--timeout", "300ms", code=7
    )
    ran(example, "delete", "app", "huge")


def test_wait_ends_when_the_newest_revision_is_decided(example: Mesh) -> None:
    ran(example, "apply", "-f", "-", data=fits("grows"))
    ran(example, "wait", "grows", "--for", "phase=Running", "--timeout", "90s")
    ran(example, "apply", "-f", "-", data=fits("grows", '"900"'))
    kept = example.run("wait", "grows", "--for", "phase=Running", "--timeout", "90s")
    assert kept.returncode == 0 and b"runs revision 1; revision 2 is Pending" in kept.stderr
    ran(example, "wait", "grows", "--for", "phase=Pending", "--timeout", "90s")
    told(example, "grows")
    text = refused(example, "wait", "grows", "--for", "phase=Failed", "--timeout", "300ms", code=7)
    assert (
        "is not Failed after 0.3 s, but Running at revision 1; revision 2 is Pending" in text
        and "ResourceShort" in text
    )
    assert "1 (2 Pending)" in ran(example, "get", "groups") and "1 (2 Pending)" in ran(example, "get", "apps")
    assert "Revision 2 cannot be placed; revision 1 keeps running." in ran(example, "why", "grows")
    ran(example, "apply", "-f", "-", data=fits("grows", "250m"))
    ran(example, "wait", "grows", "--for", "phase=Running", "--timeout", "90s")
    assert shown(example, "get", "group", "grows")["revision"] == 3
    ran(example, "delete", "app", "grows")


def test_simulate_and_dry_run_store_nothing(example: Mesh) -> None:
    before = shown(example, "get", "clusters")
    why = shown(example, "simulate", "-f", "-", data=fits("ghost"))
    assert why["phase"] == "Placed" and why["apps"]["web"]["clusters"]
    assert shown(example, "simulate", "-f", "-", data=fits("ghost", '"900"'), code=1)["phase"] == "Pending"
    (dry,) = shown(example, "apply", "--dry-run", "-f", "-", data=fits("ghost"))["items"]
    assert dry["accepted"] and dry["why"]["phase"] == "Placed"
    refused(example, "get", "app", "ghost", code=3)
    assert [c["free"] for c in shown(example, "get", "clusters")["items"]] == [c["free"] for c in before["items"]]


def test_the_readmes_application_fits_the_example(example: Mesh) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shop = readme.split("```yaml\n")[1].split("```")[0]
    assert "# shop.yaml" in shop
    ran(example, "simulate", "-f", "-", data=shop.encode())


def test_invalid_documents_exit_with_1_and_name_every_path(example: Mesh) -> None:
    bad = fits("bad").replace(b"nginx\n          needs", b"nope\n          needs").replace(b"labels:", b"labls:")
    text = refused(example, "apply", "-f", "-", data=bad, code=1)
    assert "metadata.labls" in text
    (answer,) = shown(example, "apply", "-f", "-", data=bad, code=1)["items"]
    assert answer["accepted"] is False and answer["problem"]["status"] == 400


def test_each_of_several_documents_gets_an_answer(example: Mesh) -> None:
    both = fits("one") + b"---\nkind: Nonsense\nmetadata: {name: x}\n---" + fits("two")
    done = example.run("apply", "-f", "-", data=both)
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.decode().splitlines()] == ["application/one", "application/two"]
    assert b"stdin[1]" in done.stderr
    ran(example, "delete", "-f", "-", data=fits("one") + b"---" + fits("two"))


def test_a_standalone_intent_is_applied(example: Mesh) -> None:
    ran(example, "apply", "-f", "-", data=fits("base"))
    intent = {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "PlacementIntent",
        "metadata": {"name": "only-us"},
        "spec": {"group": "base", "app": "web", "allOf": [{"label": {"region": "us"}}]},
    }
    ran(example, "apply", "-f", "-", data=json.dumps(intent).encode())
    assert [i["metadata"]["name"] for i in shown(example, "get", "placementintents")["items"]] == ["only-us"]
    assert shown(example, "get", "intent", "PlacementIntent/only-us")["spec"]["app"] == "web"
    end = time.monotonic() + 60
    while not all(c.startswith("telco/") for c in shown(example, "why", "base")["apps"]["web"]["clusters"] or ["x"]):
        assert time.monotonic() < end, shown(example, "why", "base")
        time.sleep(0.1)
    ran(example, "delete", "placementintent", "only-us")
    refused(example, "get", "placementintent", "only-us", code=3)
    ran(example, "delete", "app", "base")


def test_controllers_set_changes_and_adds_controllers(example: Mesh) -> None:
    ran(example, "controllers", "set", "labels", "--deadline", "300ms", "--weight", "2")
    labels = {c["name"]: c for c in shown(example, "controllers")["items"]}["labels"]
    assert (labels["deadlineMs"], labels["weight"], labels["policy"]) == (300, 2, "required")
    ran(example, "controllers", "set", "labels", "--deadline", "500ms", "--weight", "1")
    refused(example, "controllers", "set", "labels", "--deadline", "soon", code=2)
    refused(example, "controllers", "set", "labels", "--policy", "maybe", code=2)
    refused(example, "controllers", "set", "labels", "--deadline", "0ms", code=1)


def test_fleet_apply_and_fleet_fault_change_the_simulator(example: Mesh, tmp_path: Path) -> None:
    builtin = json.loads(ran(example, "get", "clusters", "-o", "json"))
    assert len(builtin["items"]) == 6
    fleet = tmp_path / "broken.yaml"
    fleet.write_text("clusters:\n  - name: x\n    nodez: []\n")
    assert "clusters[0].nodez" in refused(example, "fleet", "apply", str(fleet), code=1)
    ran(example, "fleet", "fault", "telco/core-1", "silent", "--for", "1s")


def test_check_subjects_and_version_work(example: Mesh) -> None:
    end = time.monotonic() + 60
    while example.run("check").returncode and time.monotonic() < end:  # a fault of another test may still be active
        time.sleep(0.2)
    found = shown(example, "check")
    assert found["healthy"] and {i["state"] for i in found["items"]} == {"ok"}
    assert {"up", "nats", "redis", "gateway", "merger", "hpa"} <= set(example.endpoint["pids"])
    assert "moorage.intents.apply" in ran(example, "subjects")
    own, gateway = ran(example, "version").splitlines()
    number = own.removeprefix("moorage ")
    assert gateway == f"gateway {number} at {example.endpoint['http']}"
    assert ran(example, "--version") == f"{own}\n{gateway}\n"
    assert shown(example, "version")["gateway"] == {"url": example.endpoint["http"], "version": number}
    assert ran(example, "--help").startswith("Usage: moorage") and "4 conflict" in ran(example, "--help")


def test_the_version_is_shown_without_a_gateway(example: Mesh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        port = silent.getsockname()[1]
        for url, problem in (
            ("http://127.0.0.1:1", "gateway: http://127.0.0.1:1 cannot be reached"),
            (f"http://127.0.0.1:{port}", f"gateway: http://127.0.0.1:{port} did not answer in time"),
        ):
            command, env = [sys.executable, "-m", "moorage.cli", "--version"], {**os.environ, "MOORAGE_URL": url}
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
            own, gateway = done.stdout.splitlines()
            assert own.startswith("moorage ") and gateway.startswith(problem)


def test_a_wrong_token_exits_with_5_and_a_wrong_address_with_6(example: Mesh) -> None:
    env = {**os.environ, "MOORAGE_URL": example.endpoint["http"], "MOORAGE_TOKEN": "wrong"}
    command = [sys.executable, "-m", "moorage.cli", "get", "groups"]
    assert subprocess.run(command, env=env, capture_output=True, check=False).returncode == 5
    env["MOORAGE_URL"] = "http://127.0.0.1:1"
    assert subprocess.run(command, env=env, capture_output=True, check=False).returncode == 6


def test_get_uses_little_processor_time(example: Mesh) -> None:
    """The time on the clock depends on what else runs; see the benchmark `commands`."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    seconds = []
    for _ in range(5):
        before = used()
        ran(example, "get", "groups")
        seconds.append(used() - before)
    assert min(seconds) < 0.6, seconds


def test_watch_prints_changes(example: Mesh) -> None:
    command = [sys.executable, "-u", "-m", "moorage.cli", "get", "groups", "-w", "-o", "name"]
    env = {**os.environ, "MOORAGE_STATE": str(example.state)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout is not None
        try:
            assert watcher.stdout.readline().startswith(b"group/")
            ran(example, "apply", "-f", "-", data=fits("watched"))
            while watcher.stdout.readline() != b"group/default/watched/v1/default\n":
                pass
            ran(example, "delete", "app", "watched")
            while watcher.stdout.readline() != b"group/default/watched/v1/default deleted\n":
                pass
        finally:
            watcher.terminate()


def test_a_controller_from_a_file_is_asked(example: Mesh, tmp_path: Path) -> None:
    file = tmp_path / "only_eu.py"
    file.write_text(
        "from moorage.sdk import allow, controller\n\n"
        '@controller("only-eu", deadline=5)\n'
        "async def only_eu(ask, fleet):\n"
        '    eu = fleet.clusters.where(label={"region": "eu"})\n'
        "    return {app.name: allow(eu) for app in ask.apps}\n"
    )
    env = {**os.environ, "MOORAGE_STATE": str(example.state)}
    command = [sys.executable, "-m", "moorage.cli", "run", str(file)]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as own:
        try:
            assert own.stderr is not None
            assert own.stderr.readline().decode() == "only-eu is registered; Ctrl-C stops it\n"
            assert "only-eu" in ran(example, "get", "controllers", "-o", "name")
            why = shown(example, "simulate", "-f", "-", data=fits("eu-only"))
            assert why["apps"]["web"]["clusters"][0].startswith("lab/")
            assert {c["name"]: c["outcome"] for c in why["controllers"]}["only-eu"] == "answered"
        finally:
            own.terminate()
            assert own.wait(60) == 0
    end = time.monotonic() + 60
    while "only-eu" in ran(example, "get", "controllers", "-o", "name"):
        assert time.monotonic() < end, "a cleanly stopped controller leaves"
        time.sleep(0.05)
