"""Documents from files, directories and stdin; `{file: …}` is replaced by what it names before anything is sent."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .exit_codes import FAILED, USAGE, Failure
from .helm import is_chart
from .helm import render as rendered

_SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "/dev/stdin"
API_VERSION = "moorage.dev/v1alpha1"
#: What a file may become; nothing larger is taken anywhere.
MAX_BYTES = 64 << 20


@dataclass
class Document:
    body: dict[str, Any]
    where: str  # the file and, of several, which one: for messages
    base: Path = Path()  # what it names is relative to

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
    """With `values` texts are templates."""
    found = [document for source in sources for document in read(source, fleet=fleet, values=values)]
    if not found:
        raise Failure(f"{', '.join(sources)}: there is no document in it", USAGE)
    return found


def read_values(sources: list[str] | None) -> Values:
    """Values files, later ones over earlier ones; None where there are none."""
    if not sources:
        return None
    found: dict[str, Any] = {}
    for source in sources:
        for body in parse(_text(Path(source)), source):
            if body is not None and not isinstance(body, dict):
                raise Failure(f"{source}: values are a mapping")
            found |= body or {}
    return found


def read(source: str, *, fleet: bool = False, values: Values = None) -> list[Document]:
    """All documents of a file, of every file of a directory (by name), or of stdin (`-`)."""
    if source in ("-", STDIN):
        return read_text(sys.stdin.read(), "stdin", Path(), fleet=fleet, values=values)
    path = Path(source)
    found: list[Document] = []
    for file in _files(path):
        found += read_text(_text(file), str(file), file.parent, fleet=fleet, values=values)
    return found


def read_fleet(source: str) -> Document:
    """The fleet that a file, a directory or stdin holds, in one document or several."""
    documents = read(source, fleet=True)
    if not documents:
        raise Failure(f"{source}: there is no document in it", USAGE)
    return one_fleet(documents, source)[0]


def one_fleet(documents: list[Document], where: str = "") -> list[Document]:
    """Of several Fleets one, with the clusters of all: a fleet is applied as a whole, and the next would take its place."""
    fleets = [d for d in documents if d.kind == "Fleet"]
    if len(fleets) < 2:
        return documents
    clusters: list[Any] = []
    for one in fleets:
        if not isinstance(own := one.body.get("clusters"), list):
            raise Failure(f"{one.where}: clusters must be a list")
        clusters += own
    first = fleets[0]
    whole = Document({**first.body, "clusters": clusters}, where or first.where, first.base)
    return [whole if d is first else d for d in documents if d is first or d.kind != "Fleet"]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    return [path]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Failure(f"there is no file '{path}'", USAGE) from None
    except (OSError, UnicodeDecodeError) as wrong:
        raise Failure(f"cannot read {path}: {wrong}", USAGE) from wrong


def read_text(text: str, where: str, base: Path, *, fleet: bool = False, values: Values = None) -> list[Document]:
    if values is not None:
        from .go_template import render

        text = render(text, values, where)
    elif "resourceContext" in text and "{{" in text:
        raise Failure(f"{where}: this is a template; name the file with its values: -v values.yaml", USAGE)
    bodies = [body for body in parse(text, where) if body is not None]
    found: list[Document] = []
    for number, body in enumerate(bodies):
        name = where if len(bodies) == 1 else f"{where}[{number}]"
        if not isinstance(body, dict):
            raise Failure(f"{name}: a document is a mapping, this is a {type(body).__name__}")
        if fleet:
            body = {"apiVersion": API_VERSION, "kind": "Fleet"} | body
            if body["kind"] != "Fleet":
                raise Failure(f"{name}: kind is {body['kind']}, a Fleet is wanted here")
        body.pop("status", None)  # what `get` shows and nobody writes
        if body.get("kind") == "Application":
            _inline(body, name, base)
        found.append(Document(body, name, base))
    return found


def parse(text: str, where: str) -> list[Any]:
    if text.lstrip()[:1] == "{":
        try:  # JSON is what programs send, and faster by far
            return [json.loads(text)]
        except (ValueError, RecursionError):
            pass  # several documents, or YAML in braces
    import yaml

    class Loader(yaml.CSafeLoader):  # type: ignore[misc,unused-ignore]
        """Dates stay text, as Kubernetes has them; a key that stands twice is an error, not a silent loss."""

        yaml_implicit_resolvers = {
            first: [(tag, form) for tag, form in forms if tag != "tag:yaml.org,2002:timestamp"]
            for first, forms in yaml.CSafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[Any] = set()
            for key, _ in node.value:
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands twice", key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    from moorage.model.problems import Refused
    from moorage.parsing import yaml_json

    try:
        yaml_json.measure(text, MAX_BYTES, MAX_BYTES)
        return list(yaml.load_all(text, Loader))
    except Refused as refusal:
        raise Failure(f"{where}: {refusal}") from None
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as wrong:
        mark = getattr(wrong, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark is not None else where
        raise Failure(f"{place}: not valid YAML: {getattr(wrong, 'problem', None) or wrong}") from wrong


def _inline(body: dict[str, Any], where: str, base: Path) -> None:
    spec = body.get("spec")
    apps = spec.get("apps") if isinstance(spec, dict) else None
    for number, app in enumerate(apps if isinstance(apps, list) else []):
        if isinstance(app, dict) and "manifests" in app:
            release = str(app.get("name", ""))
            app["manifests"] = _inlined(app["manifests"], f"{where}: spec.apps[{number}].manifests", base, release)


def _inlined(manifests: Any, where: str, base: Path, release: str) -> Any:
    if isinstance(manifests, dict):
        read = _read_in(manifests, where, base, release)
        return manifests if read is None else read
    if not isinstance(manifests, list):
        return manifests
    found: list[Any] = []
    for number, one in enumerate(manifests):
        read = _read_in(one, f"{where}[{number}]", base, release)
        found += [one] if read is None else read
    return found


def _read_in(item: Any, where: str, base: Path, release: str) -> list[Any] | None:
    """The objects of a file or a chart; None for what is an object itself, or nothing that is known here."""
    if isinstance(item, dict) and set(item) == {"file"}:
        return _named(item["file"], where, base)
    if is_chart(item):
        return _objects(rendered(item, release, where, base), f"{where}.chart")
    return None


def _named(name: Any, where: str, base: Path) -> list[Any]:
    """The Kubernetes objects in a file or directory, with lists taken apart."""
    path = base / str(name)
    if not path.exists():
        raise Failure(f"{where}.file: there is no file or directory '{path}'", FAILED)
    found: list[Any] = []
    for file in _files(path):
        found += _objects(_text(file), str(file))
    return found


def _objects(text: str, where: str) -> list[Any]:
    found: list[Any] = []
    for one in parse(text, where):
        if isinstance(one, dict) and one.get("kind") == "List":
            found += one.get("items") or []
        elif one is not None:
            found.append(one)
    return found
