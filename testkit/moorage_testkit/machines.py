"""An example of a Machine with three types on three Nodes."""

from __future__ import annotations

from typing import Any

import yaml

MACHINE = """\
apiVersion: imperator.tenzen-y.io/v1alpha1
kind: Machine
metadata:
  name: general-machine
  labels:
    imperator.tenzen-y.io/machine-group: general-machine
spec:
  nodePool:
    - name: michiru
      mode: ready
      taint: true
      machineType:
        - name: compute-xlarge
    - name: utaha
      mode: maintenance
      taint: false
      machineType:
        - name: compute-medium
    - name: eriri
      mode: ready
      taint: true
      machineType:
        - name: compute-medium
  machineTypes:
    - name: compute-medium
      spec:
        cpu: 6000m
        memory: 48Gi
        gpu:
          type: nvidia.com/gpu
          num: 1
          machine: DGX-1
      available: 4
    - name: compute-xlarge
      spec:
        cpu: 40000m
        memory: 128Gi
        gpu:
          type: nvidia.com/gpu
          num: 2
          product: "NVIDIA-GeForce-RTX-3090"
      available: 1
    - name: compute-large
      spec:
        cpu: 20000m
        memory: 64Gi
        gpu:
          type: nvidia.com/gpu
          num: 1
          family: ampere
      available: 2
"""


def example() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(MACHINE)
    return document


def machine(
    group: str, types: dict[str, dict[str, Any]], nodes: dict[str, list[str]], **node_fields: Any
) -> dict[str, Any]:
    """Returns a Machine. `types`: entries of machineTypes by name; `nodes`: types by Node, all with the same fields."""
    return {
        "apiVersion": "imperator.tenzen-y.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": group, "labels": {"imperator.tenzen-y.io/machine-group": group}},
        "spec": {
            "nodePool": [
                {"name": node, "mode": "ready", "machineType": [{"name": t} for t in names], **node_fields}
                for node, names in nodes.items()
            ],
            "machineTypes": [{"name": name, **fields} for name, fields in types.items()],
        },
    }


def offline(slots: int, available: int | None = None, **spec: Any) -> dict[str, Any]:
    """Returns the entry of a type whose slots the cluster may give out alone."""
    size = {"cpu": "2", "memory": "1Gi", **spec}
    return {"spec": size, "available": slots if available is None else available, "offlineSlots": slots}
