"""`moorage explain`: describes the fields of documents, from the models that decode them."""

from __future__ import annotations

import re
import textwrap
import types
import typing
from typing import Annotated, Any, NamedTuple, Union

import msgspec
from cyclopts import Parameter

from ..document_fields import DESCRIPTIONS, VALUES
from ..exit_codes import DONE, USAGE, Failure
from ..output import Format, StateDir, show
from ..schema_fields import SchemaField, machine_kinds
from ..suggestions import did_you_mean
from ..table import terminal_width
from ..terminal import out
from .completion import Cluster, document_paths

_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", Any: "any"}
_WIDTH = 100
_Struct = type[msgspec.Struct]


def explain(
    path: Annotated[
        str, Parameter(completer=document_paths, help="Kind, or a field of it: application.spec.apps.consumers.")
    ],
    name: Annotated[str, Parameter(help="After `class`: the resource class to explain.")] = "",
    /,
    *,
    filename: Annotated[
        str,
        Parameter(name=["--filename", "-f"], help="After `class`: the document of a class that need not be stored."),
    ] = "",
    cluster: Annotated[Cluster, Parameter(help="After `class`: only devices of this cluster.")] = "",
    recursive: Annotated[bool, Parameter(negative="", help="List the fields at all depths.")] = False,
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Describe the fields of documents: type, default, meaning and values.

    Kinds are Application, HpaIntent, TopologyIntent, PlacementIntent, AffinityIntent, ResourceClass, DeviceSource, DeviceQuota,
    ClassGrant, Machine, MachineNodePool and Fleet. Of a kind that a controller registered, the JSON Schema is shown; only that needs a running mesh.

    `moorage explain class NAME` and `moorage explain class -f FILE` explain which devices of the fleet a resource class selects.
    """
    if path == "class" and (name or filename):
        from .explain_class import explain_named

        return explain_named(name, filename, cluster, output, state)
    if name or filename or cluster:
        raise Failure("a name, -f and --cluster are for `moorage explain class` only", USAGE)
    kind, *names = [re.sub(r"\[[^\]]*\]", "", part) for part in path.strip(".").split(".")]
    known = _kind_of(kind)
    if known is None:
        return _explain_registered(path, kind, state)
    found = _walk(described(known), names, known)
    if output in ("json", "yaml"):
        return show(as_json(found), output)
    if output == "name":
        out("\n".join(field.name for field in found.fields()))
        return DONE
    out("\n".join(_tree(found, "", ()) if recursive else _text(found, ".".join((known, *names)))))
    return DONE


# --- models ------------------------------------------------------------------------------------------------------------


def documents() -> dict[str, tuple[_Struct, _Struct | None]]:
    """Returns the kinds of documents: the model, and that of `spec` where the model itself leaves it open."""
    from moorage.model import documents as model
    from moorage.model.resource_classes import FLEET_KINDS
    from moorage.sim.core.fleet_documents import FleetDocument

    return {
        "Application": (model.Application, None),
        **{kind: (model.IntentDocument, spec) for kind, spec in model.INTENT_SPECS.items()},
        **{kind: (found.document, None) for kind, found in FLEET_KINDS.items()},
        "Fleet": (FleetDocument, None),
    }


def kinds() -> list[str]:
    return [*documents(), *machine_kinds()]


def _kind_of(text: str) -> str | None:
    low = text.lower()
    for kind in kinds():
        if low in (kind.lower(), kind.lower() + "s") or (kind == "Application" and low in ("app", "apps")):
            return kind
    return None


class Described(NamedTuple):
    """A field, or a document as a whole."""

    name: str
    type: Any
    owner: str = ""  # class of the model that has it
    required: bool = False
    default: Any = None
    description: str = ""
    spec: _Struct | None = None  # the model of its field `spec`, where the kind decides

    @classmethod
    def of_kind(cls, kind: str) -> Described:
        model, spec = documents()[kind]
        return cls(kind, model, description=_about(model), spec=spec)

    @property
    def struct(self) -> _Struct | None:
        return _struct_in(self.type)

    @property
    def nested_in(self) -> object:
        """Returns what may be among its own fields."""
        return self.struct

    @property
    def type_text(self) -> str:
        return type_name(self.type)

    @property
    def about(self) -> str:
        """Returns what its model says."""
        return "" if self.struct is None else _about(self.struct)

    @property
    def values(self) -> tuple[str, ...]:
        return VALUES.get(self.owner, {}).get(self.name, ())

    def fields(self) -> list[Described]:
        struct = self.struct
        if struct is None:
            return []
        found = [_field(struct, one) for one in msgspec.structs.fields(struct)]
        if self.spec is not None:
            found = [one._replace(type=self.spec) if one.name == "spec" else one for one in found]
        return sorted(found, key=lambda one: not one.required)


def described(kind: str) -> Described | SchemaField:
    return machine_kinds().get(kind) or Described.of_kind(kind)


def as_json(found: Described | SchemaField, *, deep: bool = True) -> dict[str, Any]:
    item: dict[str, Any] = {"name": found.name, "type": found.type_text, "description": found.description}
    if found.owner:
        item["required"] = found.required
    if found.default is not None:
        item["default"] = found.default
    if found.values:
        item["values"] = list(found.values)
    if deep and (fields := found.fields()):
        item["fields"] = [as_json(one, deep=False) for one in fields]
    return item


def _field(struct: _Struct, one: msgspec.structs.FieldInfo) -> Described:
    default = None if one.default is msgspec.NODEFAULT or one.default == "" else one.default
    description = DESCRIPTIONS.get(struct.__name__, {}).get(one.encode_name, "")
    return Described(one.encode_name, one.type, struct.__name__, one.required, default, description)


def _about(struct: _Struct) -> str:
    text = struct.__doc__ or ""
    return " ".join(text.split()) if not text.startswith(struct.__name__ + "(") else ""


def _struct_in(kind: Any) -> _Struct | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    args = typing.get_args(kind) if typing.get_origin(kind) in (list, Union, types.UnionType) else ()
    return next((found for arg in args if (found := _struct_in(arg)) is not None), None)


def type_name(kind: Any) -> str:
    """Formats a type as kubectl does: `[]Consumer`, `map[string]string`."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"[]{type_name(args[0])}"
    if origin is dict:
        return "object" if args[1] is Any else f"map[string]{type_name(args[1])}"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(arg) for arg in args if arg is not type(None)))
    return _NAMES.get(kind) or (kind.__name__ if isinstance(kind, type) else str(kind))


def _walk(found: Described | SchemaField, names: list[str], path: str) -> Described | SchemaField:
    for name in names:
        fields = {one.name: one for one in found.fields()}
        if name not in fields:
            known = f"; known are {', '.join(fields)}" if fields else "; it has no fields"
            raise Failure(f"{path} has no field {name!r}{did_you_mean(name, fields) or known}", USAGE)
        found, path = fields[name], f"{path}.{name}"
    return found


def paths_below(typed: str) -> list[str]:
    """Returns what may follow a path that is being typed: kinds, or the fields of what was typed before the last dot."""
    if "." not in typed:
        return [name for kind in kinds() for name in (kind.lower(), f"{kind.lower()}.")]
    kind, *names = typed.split(".")[:-1]
    known = _kind_of(kind)
    if known is None:
        return []
    above = typed.rpartition(".")[0]
    return [f"{above}.{field.name}" for field in _walk(described(known), names, known).fields()]


# --- text --------------------------------------------------------------------------------------------------------------


def _text(found: Described | SchemaField, path: str) -> list[str]:
    kind, _, rest = path.partition(".")
    width = min(terminal_width() or _WIDTH, _WIDTH)
    lines = [f"KIND:   {kind}"]
    if rest:
        lines.append(f"FIELD:  {rest}  <{found.type_text}>{_facts(found)}")
    about = [found.description, found.about if rest else ""]
    for text in dict.fromkeys(filter(None, about)):
        lines += ["", *textwrap.wrap(text, width)]
    if found.values:
        lines += ["", f"VALUES: {', '.join(found.values)}"]
    if fields := found.fields():
        lines += ["", "FIELDS"]
        for field in fields:
            lines.append(f"  {field.name}  <{field.type_text}>{_facts(field)}")
            text = " ".join(filter(None, (field.description, _one_of(field))))
            lines += textwrap.wrap(text, width, initial_indent="      ", subsequent_indent="      ")
    return lines


def _facts(field: Described | SchemaField) -> str:
    if field.required:
        return "  required"
    if field.default is None:
        return ""
    default = {True: "true", False: "false"}.get(field.default) if isinstance(field.default, bool) else field.default
    return f"  default: {default}"


def _one_of(field: Described | SchemaField) -> str:
    return f"One of {', '.join(field.values)}." if len(field.values) > 1 else ""


def _tree(found: Described | SchemaField, indent: str, above: tuple[object, ...]) -> list[str]:
    lines = [f"{indent}{found.name}  <{found.type_text}>{_facts(found)}"]
    model = found.nested_in
    if model is None or model not in above:  # terms nest without end
        for field in found.fields():
            lines += _tree(field, indent + "  ", (*above, model))
    return lines


# --- kinds of controllers ----------------------------------------------------------------------------------------------


def _explain_registered(path: str, kind: str, state: Any) -> int:
    from ..gateway_client import Client
    from ..terminal import as_yaml

    known = kinds()
    try:
        schemas = {
            name: schema
            for controller in Client.find(state).items("/v1/controllers")
            for name, schema in controller.get("kinds", {}).items()
        }
    except Failure:
        schemas = {}
    found = next((name for name in schemas if name.lower() == kind.lower()), None)
    if found is None:
        known += sorted(schemas)
        suggestion = did_you_mean(kind, known, ignore_case=True) or f"; known are {', '.join(known)}"
        raise Failure(f"{kind!r} is not a kind of document{suggestion}", USAGE)
    out(f"KIND:   {found}\nJSON Schema of its spec:\n" + as_yaml(schemas[found]))
    return DONE
