"""Describes the fields of custom resources for `moorage explain`, from the schema of their definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_METADATA = {
    "type": "object",
    "description": "Name and labels.",
    "properties": {
        "name": {"type": "string", "description": "Name of the object."},
        "labels": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Labels with the syntax of Kubernetes; imperator.tenzen-y.io/machine-group is the group, and cannot be changed.",
        },
    },
    "required": ["name", "labels"],
}


class SchemaField(NamedTuple):
    """A field, or an object as a whole."""

    name: str
    schema: Mapping[str, Any]
    owner: str = ""
    required: bool = False

    @property
    def description(self) -> str:
        return str(self.schema.get("description", ""))

    @property
    def about(self) -> str:
        """Returns what the objects of a list are."""
        return str(self._object.get("description", "")) if self._object else ""

    @property
    def type_text(self) -> str:
        return _type_text(self.schema)

    @property
    def default(self) -> Any:
        return self.schema.get("default")

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(self.schema.get("enum", ()))

    @property
    def nested_in(self) -> object:
        return None  # schemas do not nest in themselves

    @property
    def _object(self) -> Mapping[str, Any]:
        found = self.schema.get("items", self.schema)
        return found if "properties" in found else {}

    def fields(self) -> list[SchemaField]:
        required = self._object.get("required", ())
        found = [
            SchemaField(name, _METADATA if name == "metadata" else schema, self.name, name in required)
            for name, schema in self._object.get("properties", {}).items()
        ]
        return sorted(found, key=lambda one: not one.required)


def machine_kinds() -> dict[str, SchemaField]:
    """Returns the kinds of machine groups."""
    from moorage.machines.crds import definitions

    kinds = {}
    for definition in definitions():
        (version,) = definition["spec"]["versions"]
        kind = definition["spec"]["names"]["kind"]
        kinds[kind] = SchemaField(kind, version["schema"]["openAPIV3Schema"])
    return kinds


def _type_text(schema: Mapping[str, Any]) -> str:
    if "items" in schema:
        return f"[]{_type_text(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map[string]{_type_text(schema['additionalProperties'])}"
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    return str(schema.get("type", "any"))
