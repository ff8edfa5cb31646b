"""Files that come with a resource: manifests as YAML or in an archive, charts, values of a profile. Read when they are
uploaded, so that who uploads learns what is wrong; bounded before they are unpacked."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from typing import Any, NamedTuple

from moorage.model.problems import Refused, Violation, invalid
from moorage.parsing import yaml_json

from ..core import validation_rules
from ..core.violations import reporter

MAX_UNPACKED = 4 << 20
MAX_FILES = 1000
_SUFFIXES = (".yaml", ".yml", ".json")


class Upload(NamedTuple):
    """Manifests, or a chart as it was uploaded."""

    objects: list[dict[str, Any]]
    chart: bool = False


def refused(code: str, message: str, path: str = "file") -> Refused:
    return Refused(invalid([Violation(path=path, code=code, message=message)]))


def app(data: bytes) -> Upload:
    """What an app's file holds."""
    found = _archive(data)
    if found is None:
        return Upload(manifests(data, "file"))
    if any(_depth(name) <= 1 and name.rsplit("/", 1)[-1] == "Chart.yaml" for name in found):
        return Upload([], chart=True)
    objects: list[dict[str, Any]] = []
    for name in sorted(found):
        if name.endswith(_SUFFIXES):
            objects += manifests(found[name], f"file/{name}")
    if not objects:
        raise refused("NoManifests", "the archive has neither a Chart.yaml nor manifests")
    return Upload(objects)


def manifests(data: bytes | str, path: str) -> list[dict[str, Any]]:
    """Kubernetes objects of a YAML or JSON text, lists opened."""
    found: list[Any] = []
    for one in documents(data, path):
        if one is not None:
            found += one if isinstance(one, list) else [one]
    errors: list[Violation] = []
    objects = validation_rules.manifests(
        [one if isinstance(one, dict) else {} for one in found], path, reporter(errors)
    )
    if errors:
        raise Refused(invalid(errors))
    if not objects:
        raise refused("NoManifests", "there is no Kubernetes object in it", path)
    return objects


def values(data: bytes) -> dict[str, Any]:
    """The values that a profile overrides: of a YAML file, or of the file that the archive's manifest.yaml names."""
    found = _archive(data)
    if found is None:
        return _mapping(data, "file")
    named = {name.split("/", 1)[-1] if "/" in name else name: text for name, text in found.items()} | found
    described = next((named[n] for n in ("manifest.yaml", "manifest.yml") if n in named), None)
    names = ["override_values.yaml", "values.yaml"]
    if described is not None:
        kinds = _mapping(described, "file/manifest.yaml").get("type")
        if isinstance(kinds, dict) and isinstance(kinds.get("values"), str):
            names.insert(0, kinds["values"].removeprefix("./"))
    for name in names:
        if name in named:
            return _mapping(named[name], f"file/{name}")
    return {}


def kubeconfig(data: bytes, path: str = "file") -> str:
    found = _mapping(data, path)
    if not found.get("clusters"):
        raise refused("NotAKubeconfig", "this is no kubeconfig: it names no clusters", path)
    return data.decode()


def _mapping(data: bytes, path: str) -> dict[str, Any]:
    found = [one for one in documents(data, path) if one is not None]
    if not found:
        return {}
    if len(found) > 1 or not isinstance(found[0], dict):
        raise refused("WrongType", "must hold one mapping", path)
    return found[0]


def documents(data: bytes | str, path: str) -> list[Any]:
    try:
        return yaml_json.yaml_of(data, MAX_UNPACKED)
    except Refused as wrong:
        raise refused(wrong.problem.code, wrong.problem.detail[:300], path) from None


def _archive(data: bytes) -> dict[str, bytes] | None:
    """Names and contents of a tar archive, packed or not; None: it is a plain text."""
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MAX_UNPACKED + 1)
        except (OSError, EOFError, zlib.error) as wrong:
            raise refused("Undecodable", f"cannot be unpacked: {wrong}") from None
        if len(data) > MAX_UNPACKED:
            raise refused("TooLarge", f"has more than {MAX_UNPACKED} bytes when unpacked")
        if data[257:262] != b"ustar":
            return {"file.yaml": data}
    elif data[257:262] != b"ustar":
        return None
    found: dict[str, bytes] = {}
    room = MAX_UNPACKED
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if len(found) == MAX_FILES:
                    raise refused("TooMany", f"has more than {MAX_FILES} files")
                if member.isfile() and (file := archive.extractfile(member)) is not None:
                    room -= member.size  # of a sparse file it is more than the archive has
                    if room < 0:
                        raise refused("TooLarge", f"has more than {MAX_UNPACKED} bytes when unpacked")
                    found[member.name.removeprefix("./")] = file.read()
    except tarfile.TarError as wrong:
        raise refused("Undecodable", f"is no archive: {wrong}") from None
    return found


def _depth(name: str) -> int:
    return name.count("/")
