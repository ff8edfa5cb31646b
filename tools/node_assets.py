"""Gets what tests of the node agent run (`make node-assets`): two containerds and runc from Debian's packages, not installed
but unpacked into the user's cache, a resource plugin in Go, and a stock kubelet."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kube_assets
from moorage_testkit.node_assets import CONTAINERD, KUBEWHARF, RUNC, cache, containerd, go_plugin

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_GO_MODULE = f"""\
module assets
go 1.22
require k8s.io/kubelet v0.24.6
replace k8s.io/kubelet => github.com/kubewharf/kubelet {KUBEWHARF}
"""


def build() -> None:
    """Gets what is missing. Each part is moved into place when it is complete; concurrent builds wait for each other."""
    directory = cache()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for series, release in CONTAINERD.items():
            if containerd(series) is None:
                _timed(f"containerd {series}", directory, lambda work, s=series, r=release: _containerd(work, s, r))
        if go_plugin() is None:
            _timed("the plugin in Go", directory, _plugin)
    kube_assets.build(directory, [kube_assets.KUBELET])
    sys.stderr.write(f"the node agent's assets are in {directory}\n")


def _timed(part: str, directory: Path, work: object) -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".build-", dir=directory) as place:
        made = work(Path(place))  # type: ignore[operator]
        target = directory / made.name
        if target.is_dir():
            shutil.rmtree(target)
        made.replace(target)
    sys.stderr.write(f"{part}: {time.monotonic() - started:.0f} s\n")


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def _containerd(work: Path, series: str, release: str) -> Path:
    made = work / f"containerd-{series}"
    made.mkdir()
    _unpack(work, release, "containerd", made)
    _unpack(work, RUNC, "runc", made)
    return made


def _unpack(work: Path, release: str, package: str, into: Path) -> None:
    """Unpacks the programs of one package of a release, with lists of our own: the system's stay as they are."""
    place = work / f"{release}-{package}"
    for directory in ("lists/partial", "cache/archives/partial"):
        (place / directory).mkdir(parents=True)
    (place / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {release} main\n")
    options = (
        f"Dir::Etc::sourcelist={place}/sources.list",
        "Dir::Etc::sourceparts=-",
        f"Dir::State::lists={place}/lists",
        f"Dir::Cache={place}/cache",
        "APT::Sandbox::User=root",
    )
    apt = ("apt-get", "-qq", *(word for option in options for word in ("-o", option)))
    _run(*apt, "update")
    _run(*apt, "download", package, cwd=place)
    (archive,) = place.glob("*.deb")
    _run("dpkg-deb", "-x", str(archive), str(place / "root"))
    for directory in ("usr/bin", "usr/sbin"):
        for program in (place / "root" / directory).glob("*"):
            program.replace(into / program.name)


def _mirror() -> str:
    """Returns the mirror of Debian that this machine uses."""
    if shutil.which("apt-get") is None or not _KEYRING.exists():
        raise SystemExit("the container runtimes come from Debian's packages: this needs apt-get and Debian's keyring")
    for line in _run("apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)").splitlines():
        origin, _, address = line.partition(" ")
        if origin == "Debian" and "security" not in address:
            return address
    raise SystemExit("no mirror of Debian in apt's sources; run `apt-get update` first")


def _plugin(work: Path) -> Path:
    if shutil.which("go") is None:
        raise SystemExit("the plugin needs a Go toolchain (https://go.dev/dl)")
    source = work / "source"
    source.mkdir()
    shutil.copy(Path(__file__).with_name("go_plugin") / "main.go", source / "main.go")
    (source / "go.mod").write_text(_GO_MODULE)
    env = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    _run("go", "mod", "tidy", cwd=source, env=env)
    made = work / "go-plugin"
    _run("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(made), ".", cwd=source, env=env)
    return made


if __name__ == "__main__":
    build()
