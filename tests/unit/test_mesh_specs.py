"""The subject table, permissions and stores follow from the specs of the workers, and from nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from moorage.mesh import Bucket, Mesh, Subject, WorkerSpec, controller_spec, stores
from moorage.mesh.discovery import installed
from moorage.mesh.permissions import for_user

SPEC = """
from moorage.mesh import Bucket, Subject, WorkerSpec, stores, subjects

SPEC = WorkerSpec(
    name="tides",
    entry="moorage.tides.worker:main",
    serves=(Subject("moorage.tides.get", "harbour", "the next high water", request=True),),
    publishes=(subjects.CLUSTERS_SET,),
    owns=(Bucket("moorage-tides"),),
    reads=(stores.GROUPS,),
)
"""
ASKED = """
import sys
from moorage.cli.workers import load
from moorage.mesh.discovery import installed
from moorage.mesh.docs import markdown
from moorage.mesh.permissions import for_user
mesh = installed()
user = for_user(mesh, "tides")
assert "tides" in mesh.workers and "tides" in mesh.users
assert {"moorage.clusters.set", "$KV.moorage-tides.>", "moorage.rejected.*"} <= {*user["publish"]["allow"]}
assert "$JS.API.STREAM.INFO.KV_moorage-groups" in user["publish"]["allow"]
assert "$KV.moorage-groups.>" not in user["publish"]["allow"]
assert "moorage.tides.get" in user["subscribe"]["allow"]
assert "moorage-tides" in mesh.stores
assert "| `moorage.tides.get` (request) | harbour |  | tides | the next high water |" in markdown(mesh)
assert "moorage.tides.worker" not in sys.modules
assert load("tides")() == "started"
"""


def test_a_package_with_a_spec_is_a_worker(tmp_path: Path) -> None:
    package = tmp_path / "moorage" / "tides"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "spec.py").write_text(SPEC)
    (package / "worker.py").write_text('def main() -> str:\n    return "started"\n')
    code = f"import sys; sys.path.append({str(tmp_path)!r})\n{ASKED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_names_of_workers_are_known_without_importing_them() -> None:
    code = """
import sys
from moorage.mesh.discovery import installed
assert len(installed().workers) > 5
print(sorted({"numpy", "nats", "msgspec", "redis", "moorage.bus"} & {*sys.modules}))
print([spec.module for spec in installed().workers.values() if spec.module in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"


def test_each_entry_is_there() -> None:
    for spec in installed().workers.values():
        assert callable(spec.main()), spec.name


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ([WorkerSpec(name="a"), WorkerSpec(name="a")], "same name"),
        ([WorkerSpec(name="a", publishes=("moorage.x",))], "no worker describes: moorage.x"),
        ([WorkerSpec(name="a", reads=("moorage-x",))], "a uses moorage-x, which no worker declares"),
        ([WorkerSpec(name=name, owns=(Bucket("moorage-x"),)) for name in "ab"], "b declares moorage-x"),
        ([WorkerSpec(name="a", owns=(Bucket(stores.LEASES),))], "declared already"),
        ([WorkerSpec(name=name, serves=(Subject("x", name, ""),)) for name in "ab"], "b describes x differently"),
    ],
)
def test_specs_that_contradict_each_other_are_refused(specs: list[WorkerSpec], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Mesh(specs)


def test_a_controller_may_not_use_the_name_of_a_builtin_one() -> None:
    rest = WorkerSpec(
        name="rest",
        serves=tuple(Subject(f"moorage.controllers.*.{verb}", "", "") for verb in ("register", "leave")),
        owns=tuple(store for store in installed().stores.values() if store.name in (stores.LEDGER, stores.SNAPSHOTS)),
    )
    mesh = Mesh([rest, controller_spec("wind", entry="moorage.wind:main"), controller_spec("controller")])
    builtin, other = for_user(mesh, "wind"), for_user(mesh, "controller")
    assert "moorage.controllers.wind.candidates" in builtin["subscribe"]["allow"]
    assert "moorage.controllers.*.candidates" in other["subscribe"]["allow"]
    assert other["subscribe"]["deny"] == other["publish"]["deny"] == ["moorage.controllers.wind.>"]
