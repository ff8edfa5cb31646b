"""Finds the container runtimes, the kubelet and the plugin in Go that `make node-assets` gets for tests of the node agent."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from .kube_assets import KUBERNETES

#: Series of containerd → release of Debian that has it. The first has no NRI.
CONTAINERD = {"1.6": "bookworm", "1.7": "trixie"}
RUNC = "bookworm"
#: KubeWharf's types for plugins, a fork of k8s.io/kubelet.
KUBEWHARF = "v1.24.6-kubewharf.9"
_RELEASE = 1


def cache() -> Path:
    """Returns the directory of what `make node-assets` gets."""
    return Path(platformdirs.user_cache_dir("moorage")) / f"node-{_RELEASE}-{KUBEWHARF}"


def containerd(series: str) -> Path | None:
    """Returns the directory of the programs of one containerd, with runc; None if it is missing."""
    directory = cache() / f"containerd-{series}"
    needed = ("containerd", "ctr", "containerd-shim-runc-v2", "runc")
    return directory if all(os.access(directory / name, os.X_OK) for name in needed) else None


def go_plugin() -> Path | None:
    """Returns a resource plugin that is built with KubeWharf's types."""
    found = cache() / "go-plugin"
    return found if os.access(found, os.X_OK) else None


def kubelet() -> Path | None:
    """Returns a stock kubelet of the version of our API servers."""
    found = cache() / f"kubelet-{KUBERNETES}"
    return found if os.access(found, os.X_OK) else None


def missing() -> str:
    """Returns what to do if a test of real runtimes cannot run; "" if it can."""
    if os.geteuid() != 0:
        return "containerd needs root"
    if any(containerd(series) is None for series in CONTAINERD) or go_plugin() is None or kubelet() is None:
        return "no container runtimes for the node agent; `make node-assets` gets them"
    return ""
