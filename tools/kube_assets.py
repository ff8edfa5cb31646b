"""Builds etcd, Kubernetes, kwok and helm from their published Go modules into the user's cache (`make kube-assets`).

Kubernetes points its own requirements at directories that are not in its module; a module of ours names their published
versions instead."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from moorage_testkit.kube_assets import ETCD, HELM, KUBERNETES, KWOK, cache, find, helm, missing_binaries

#: Kubernetes' own libraries have versions of their own.
STAGING = KUBERNETES.replace("v1.", "v0.", 1)
_GO = "1.26.0"


class Build(NamedTuple):
    """One `go build`. `packages` is about how many packages it compiles; it is only shown."""

    names: tuple[str, ...]
    module: str
    version: str
    mains: tuple[str, ...]
    packages: int
    flags: str = "-s -w"


_VERSION = "k8s.io/component-base/version"
_KUBERNETES_FLAGS = f"-s -w -X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=36"
BUILDS = (
    Build(("etcd",), "go.etcd.io/etcd/server/v3", ETCD, ("go.etcd.io/etcd/server/v3",), 560),
    Build(
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
        "k8s.io/kubernetes",
        KUBERNETES,
        tuple(f"k8s.io/kubernetes/cmd/kube-{part}" for part in ("apiserver", "controller-manager", "scheduler")),
        2650,
        _KUBERNETES_FLAGS,
    ),
    Build(("kwok",), "sigs.k8s.io/kwok", KWOK, ("sigs.k8s.io/kwok/cmd/kwok",), 1150),
)
#: Renders charts; not a part of a control plane.
CHARTS = Build(("helm",), "helm.sh/helm/v3", HELM, ("helm.sh/helm/v3/cmd/helm",), 900)
#: Tests of the node agent run it; most of its packages are also those of the control plane.
KUBELET = Build(
    (f"kubelet-{KUBERNETES}",),
    "k8s.io/kubernetes",
    KUBERNETES,
    ("k8s.io/kubernetes/cmd/kubelet",),
    1780,
    _KUBERNETES_FLAGS,
)


def build(directory: Path, builds: Iterable[Build] = BUILDS) -> None:
    """Builds what is missing. A binary is moved into place when it is complete; concurrent builds wait for each other."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for item in builds:
            if missing_binaries(directory, item.names):
                _build(item, directory)
    _report(f"the binaries are in {directory}")


def _build(item: Build, directory: Path) -> None:
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".build-", dir=directory) as work:
        _report(f"{item.module} {item.version}: fetching modules")
        _write_module(item, Path(work), env)
        _go(["mod", "tidy", "-e"], work, env)
        output = Path(work, "bin")
        output.mkdir()
        command = ["go", "build", "-v", "-trimpath", "-ldflags", item.flags, "-o", f"{output}/", *item.mains]
        _run_with_progress(command, work, env, item)
        for made in output.iterdir():
            name = item.names[0] if len(item.names) == 1 else made.name
            os.replace(made, directory / name)
    _report(f"{', '.join(item.names)}: built in {time.monotonic() - started:.0f} s")


def _write_module(item: Build, work: Path, env: dict[str, str]) -> None:
    lines = ["module assets", f"go {_GO}", f"require {item.module} {item.version}"]
    if item.module == "k8s.io/kubernetes":
        module = _go(["mod", "download", "-json", f"{item.module}@{item.version}"], str(work), env)
        found = re.search(r'"GoMod": "(.*)"', module)
        if found is None:
            raise SystemExit(f"{item.module}@{item.version}: no go.mod")
        staged = re.findall(r"^\s*(?:replace )?(\S+) => \./staging", Path(found[1]).read_text(), re.MULTILINE)
        lines += [f"replace {name} => {name} {STAGING}" for name in staged]
    (work / "go.mod").write_text("\n".join(lines) + "\n")
    imports = "".join(f'import _ "{main}"\n' for main in item.mains)
    (work / "assets.go").write_text(f"//go:build tools\n\npackage assets\n\n{imports}")


def _go(arguments: list[str], work: str, env: dict[str, str]) -> str:
    done = subprocess.run(["go", *arguments], cwd=work, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"go {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def _run_with_progress(command: list[str], work: str, env: dict[str, str], item: Build) -> None:
    """Runs `go build -v` and reports its progress: it names each package that it compiles and is not cached."""
    compiled, last, tail = 0, 0.0, [""]
    with subprocess.Popen(command, cwd=work, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            compiled += 1
            tail = [*tail[-30:], line]
            if time.monotonic() - last >= (0.5 if sys.stderr.isatty() else 20):
                last = time.monotonic()
                _report(f"{item.module}: compiled {compiled} of about {item.packages} packages", transient=True)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{''.join(tail)}")


def _report(text: str, *, transient: bool = False) -> None:
    terminal = sys.stderr.isatty()
    sys.stderr.write(f"\r\x1b[K{text}" + ("" if transient and terminal else "\n") if terminal else f"{text}\n")
    sys.stderr.flush()


def main() -> None:
    """Builds nothing where KUBEBUILDER_ASSETS has all binaries and helm is on PATH."""
    directory, _ = find()
    if directory is not None:
        _report(f"the binaries are in {directory}")
        if helm() is not None:
            return
    if shutil.which("go") is None:
        raise SystemExit("building them needs a Go toolchain (https://go.dev/dl); or set KUBEBUILDER_ASSETS")
    build(cache(), (*(() if directory is not None else BUILDS), CHARTS))


if __name__ == "__main__":
    main()
