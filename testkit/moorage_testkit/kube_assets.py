"""Finds the binaries of a real control plane: by the convention of envtest, or where `make kube-assets` puts them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import platformdirs

KUBERNETES, ETCD, KWOK, HELM = "v1.36.3", "v3.6.8", "v0.8.0", "v3.19.2"
BINARIES = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kwok")


def cache() -> Path:
    """Returns the directory of the binaries that we build. Each set of versions has its own."""
    name = f"kube-{KUBERNETES}-etcd-{ETCD}-kwok-{KWOK}-helm-{HELM}"
    return Path(platformdirs.user_cache_dir("moorage")) / name


def missing_binaries(directory: Path, names: Iterable[str] = BINARIES) -> list[str]:
    return [name for name in names if not os.access(directory / name, os.X_OK)]


def find() -> tuple[Path | None, str]:
    """Returns the directory of the binaries, or None and one line that says what to do.

    kwok is no part of envtest: it is looked for beside the others, in the cache and on PATH."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    directory = Path(named) if named else cache()
    missing = missing_binaries(directory, BINARIES if not named else [n for n in BINARIES if n != "kwok"])
    if missing:
        how = "`make kube-assets` builds them" if shutil.which("go") else "set KUBEBUILDER_ASSETS, or install Go"
        return None, f"no real control planes: {directory} has no {', '.join(missing)}; {how}"
    if kwok(directory) is None:
        places = f"{directory}, {cache()} or on PATH"
        return None, f"no real control planes: no kwok in {places}; `make kube-assets` builds it"
    return directory, ""


def kwok(directory: Path) -> Path | None:
    for place in (directory, cache()):
        if not missing_binaries(place, ["kwok"]):
            return place / "kwok"
    found = shutil.which("kwok")
    return Path(found) if found else None


def helm() -> Path | None:
    if not missing_binaries(cache(), ["helm"]):
        return cache() / "helm"
    found = shutil.which("helm")
    return Path(found) if found else None
