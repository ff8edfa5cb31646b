"""Reads documents from files, directories and stdin. `{file: …}` and `{chart: …}` are replaced by the objects they name
before anything is sent."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .exit_codes import FAILED, USAGE, Failure
from .helm import is_chart
from .helm import render as render_chart
from .terminal import STDIN

_SUFFIXES = (".yaml", ".yml", ".json")
API_VERSION = "moorage.dev/v1alpha1"
#: The largest size of a decoded file; the gateway refuses larger bodies anyway.
MAX_BYTES = 64 << 20


@dataclass
class Document:
    body: dict[str, Any]
    where: str  # the file, with an index if it has several documents; for messages
    base: Path = Path()  # the directory that relative paths in the document start from

    @property
    def kind(self) -> str:
        return str(self.body.get("kind", ""))

    @property
    def name(self) -> str:
        meta = self.body.get("metadata")
        return str(meta.get("name", "")) if isinstance(meta, dict) else ""

    @property
    def project(self) -> str:
        meta = self.body.get("metadata")
        return str(meta.get("project") or "default") if isinstance(meta, dict) else "default"


Values = dict[str, Any] | None


def read_all(sources: list[str], *, fleet: bool = False, values: Values = None) -> list[Document]:
    """Reads all documents of all sources. With `values`, the files are templates."""
    found = [document for source in sources for document in read(source, fleet=fleet, values=values)]
    if not found:
        raise Failure(f"{', '.join(sources)}: no documents found", USAGE)
    return found


def read_values(sources: list[str] | None) -> Values:
    """Merges values files; later ones override earlier ones. Returns None if no file is given."""
    if not sources:
        return None
    found: dict[str, Any] = {}
    for source in sources:
        for body in parse(_text(Path(source)), source):
            if body is not None and not isinstance(body, dict):
                raise Failure(f"{source}: values must be a mapping")
            found |= body or {}
    return found


def read(source: str, *, fleet: bool = False, values: Values = None) -> list[Document]:
    """Reads all documents of a file, of every file of a directory (sorted by name), or of stdin (`-`)."""
    if source in ("-", STDIN):
        return read_text(sys.stdin.read(), "stdin", Path(), fleet=fleet, values=values)
    path = Path(source)
    found: list[Document] = []
    for file in _files(path):
        found += read_text(_text(file), str(file), file.parent, fleet=fleet, values=values)
    return found


def read_fleet(source: str) -> Document:
    """Reads the fleet that a file, a directory or stdin holds in one or several documents."""
    documents = read(source, fleet=True)
    if not documents:
        raise Failure(f"{source}: no documents found", USAGE)
    return merge_fleets(documents, source)[0]


def merge_fleets(documents: list[Document], where: str = "") -> list[Document]:
    """Merges all Fleet documents into one. A fleet is applied as a whole, so a second one would replace the first."""
    fleets = [d for d in documents if d.kind == "Fleet"]
    if len(fleets) < 2:
        return documents
    clusters: list[Any] = []
    for fleet in fleets:
        if not isinstance(items := fleet.body.get("clusters"), list):
            raise Failure(f"{fleet.where}: clusters must be a list")
        clusters += items
    first = fleets[0]
    merged = Document({**first.body, "clusters": clusters}, where or first.where, first.base)
    return [merged if d is first else d for d in documents if d is first or d.kind != "Fleet"]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    return [path]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Failure(f"file '{path}' does not exist", USAGE) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read {path}: {error}", USAGE) from error


def read_text(text: str, where: str, base: Path, *, fleet: bool = False, values: Values = None) -> list[Document]:
    if values is not None:
        from .go_template import render

        text = render(text, values, where)
    elif "resourceContext" in text and "{{" in text:
        raise Failure(f"{where} is a template; give its values with -v values.yaml", USAGE)
    bodies = [body for body in parse(text, where) if body is not None]
    found: list[Document] = []
    for number, body in enumerate(bodies):
        name = where if len(bodies) == 1 else f"{where}[{number}]"
        if not isinstance(body, dict):
            raise Failure(f"{name}: a document must be a mapping, not a {type(body).__name__}")
        if fleet:
            body = {"apiVersion": API_VERSION, "kind": "Fleet"} | body
            if body["kind"] != "Fleet":
                raise Failure(f"{name}: kind must be Fleet, not {body['kind']}")
        body.pop("status", None)  # `get` shows it, but it cannot be written
        if body.get("kind") == "Application":
            _inline(body, name, base)
        found.append(Document(body, name, base))
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def parse(text: str, where: str) -> list[Any]:
    if text.lstrip()[:1] == "{":
        try:  # programs send JSON, which is much faster to parse
            return [json.loads(text, parse_constant=_no_number)]
        except (ValueError, RecursionError):
            pass  # several documents, or YAML in braces
    import yaml

    class Loader(yaml.CSafeLoader):  # type: ignore[misc,unused-ignore]
        """Keeps dates as text, as Kubernetes does, and refuses duplicate keys instead of dropping one silently."""

        yaml_implicit_resolvers = {
            first: [(tag, form) for tag, form in forms if tag != "tag:yaml.org,2002:timestamp"]
            for first, forms in yaml.CSafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[Any] = set()
            for key, _ in node.value:
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    def number(loader: Loader, node: Any) -> float:
        value: float = loader.construct_yaml_float(node)
        if not math.isfinite(value):
            raise yaml.constructor.ConstructorError(None, None, f"{node.value} is no number", node.start_mark)
        return value

    Loader.add_constructor("tag:yaml.org,2002:float", number)
    from moorage.model.problems import Refused
    from moorage.parsing import yaml_json

    try:
        yaml_json.check_yaml_bounds(text, MAX_BYTES, MAX_BYTES)
        return list(yaml.load_all(text, Loader))
    except Refused as refusal:
        raise Failure(f"{where}: {refusal}") from None
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark is not None else where
        raise Failure(f"{place}: not valid YAML: {getattr(error, 'problem', None) or error}") from error


def _inline(body: dict[str, Any], where: str, base: Path) -> None:
    spec = body.get("spec")
    apps = spec.get("apps") if isinstance(spec, dict) else None
    for number, app in enumerate(apps if isinstance(apps, list) else []):
        if isinstance(app, dict) and "manifests" in app:
            release = str(app.get("name", ""))
            app["manifests"] = _expand(app["manifests"], f"{where}: spec.apps[{number}].manifests", base, release)


def _expand(manifests: Any, where: str, base: Path, release: str) -> Any:
    if isinstance(manifests, dict):
        objects = _expand_reference(manifests, where, base, release)
        return manifests if objects is None else objects
    if not isinstance(manifests, list):
        return manifests
    found: list[Any] = []
    for number, manifest in enumerate(manifests):
        objects = _expand_reference(manifest, f"{where}[{number}]", base, release)
        found += [manifest] if objects is None else objects
    return found


def _expand_reference(item: Any, where: str, base: Path, release: str) -> list[Any] | None:
    """Returns the objects of a `{file: …}` or `{chart: …}`, None for anything else."""
    if isinstance(item, dict) and set(item) == {"file"}:
        return _read_objects(item["file"], where, base)
    if is_chart(item):
        return _objects(render_chart(item, release, where, base), f"{where}.chart")
    return None


def _read_objects(name: Any, where: str, base: Path) -> list[Any]:
    """Reads the Kubernetes objects of a file or directory; items of List objects are returned one by one."""
    path = base / str(name)
    if not path.exists():
        raise Failure(f"{where}.file: file or directory '{path}' does not exist", FAILED)
    found: list[Any] = []
    for file in _files(path):
        found += _objects(_text(file), str(file))
    return found


def _objects(text: str, where: str) -> list[Any]:
    found: list[Any] = []
    for item in parse(text, where):
        if isinstance(item, dict) and item.get("kind") == "List":
            found += item.get("items") or []
        elif item is not None:
            found.append(item)
    return found
