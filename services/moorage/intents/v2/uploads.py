"""Reads the files that come with a resource: manifests as YAML or in an archive, charts, values of a profile. They are read
when they are uploaded, so that mistakes are answered at once, and bounded before they are unpacked."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from typing import Any, NamedTuple

from moorage.model.problems import Refused, Violation, invalid
from moorage.parsing import yaml_json

from ..core.diagnostics import Diagnostics
from ..core.manifest_rules import read_objects

MAX_UNPACKED = 4 << 20
MAX_FILES = 1000
_SUFFIXES = (".yaml", ".yml", ".json")
_GZIP, _TAR = b"\x1f\x8b", b"ustar"


class Upload(NamedTuple):
    """The objects of an app's file; none where the file is a chart."""

    objects: list[dict[str, Any]]
    chart: bool = False


def refused(code: str, message: str, path: str = "file") -> Refused:
    return Refused(invalid([Violation(path=path, code=code, message=message)]))


def app(data: bytes) -> Upload:
    files = _archive(data)
    if files is None:
        return Upload(manifests(data, "file"))
    if any(name.count("/") <= 1 and name.rsplit("/", 1)[-1] == "Chart.yaml" for name in files):
        return Upload([], chart=True)
    objects: list[dict[str, Any]] = []
    for name in sorted(files):
        if name.endswith(_SUFFIXES):
            objects += manifests(files[name], f"file/{name}")
    if not objects:
        raise refused("NoManifests", "the archive has neither a Chart.yaml nor manifests")
    return Upload(objects)


def manifests(data: bytes | str, path: str) -> list[dict[str, Any]]:
    """Returns the Kubernetes objects of a YAML or JSON text, with the items of lists."""
    entries: list[Any] = []
    for document in documents(data, path):
        if document is not None:
            entries += document if isinstance(document, list) else [document]
    diagnostics = Diagnostics()
    objects = read_objects([entry if isinstance(entry, dict) else {} for entry in entries], path, diagnostics)
    if diagnostics.errors:
        raise Refused(invalid(diagnostics.errors))
    if not objects.manifests:
        raise refused("NoManifests", "the text has no Kubernetes object", path)
    return objects.manifests


def values(data: bytes) -> dict[str, Any]:
    """Returns the values of a profile: of a YAML file, or of the file that the archive's manifest.yaml names."""
    files = _archive(data)
    if files is None:
        return _mapping(data, "file")
    # Names count with and without the top directory of the archive.
    files = {name.split("/", 1)[-1]: content for name, content in files.items()} | files
    manifest = next((files[name] for name in ("manifest.yaml", "manifest.yml") if name in files), None)
    names = ["override_values.yaml", "values.yaml"]
    if manifest is not None:
        kinds = _mapping(manifest, "file/manifest.yaml").get("type")
        if isinstance(kinds, dict) and isinstance(kinds.get("values"), str):
            names.insert(0, kinds["values"].removeprefix("./"))
    for name in names:
        if name in files:
            return _mapping(files[name], f"file/{name}")
    return {}


def kubeconfig(data: bytes, path: str = "file") -> str:
    if not _mapping(data, path).get("clusters"):
        raise refused("NotAKubeconfig", "this is not a kubeconfig: it names no clusters", path)
    return data.decode()


def _mapping(data: bytes, path: str) -> dict[str, Any]:
    found = [document for document in documents(data, path) if document is not None]
    if not found:
        return {}
    if len(found) > 1 or not isinstance(found[0], dict):
        raise refused("WrongType", "must be one mapping", path)
    return found[0]


def documents(data: bytes | str, path: str) -> list[Any]:
    try:
        return yaml_json.parse_yaml(data, MAX_UNPACKED)
    except Refused as refusal:
        raise refused(refusal.problem.code, refusal.problem.detail[:300], path) from None


def _archive(data: bytes) -> dict[str, bytes] | None:
    """Returns the names and contents of a tar archive, compressed or not. None: the data is plain text."""
    if data[:2] == _GZIP:
        data = _unzipped(data)
        if not _is_tar(data):
            return {"file.yaml": data}
    elif not _is_tar(data):
        return None
    files: dict[str, bytes] = {}
    bytes_left = MAX_UNPACKED
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if len(files) == MAX_FILES:
                    raise refused("TooMany", f"has more than {MAX_FILES} files")
                if member.isfile() and (file := archive.extractfile(member)) is not None:
                    bytes_left -= member.size  # a sparse file may be larger than the archive
                    if bytes_left < 0:
                        raise _too_large()
                    files[member.name.removeprefix("./")] = file.read()
    except tarfile.TarError as error:
        raise refused("Undecodable", f"is not an archive: {error}") from None
    return files


def _is_tar(data: bytes) -> bool:
    return data[257:262] == _TAR


def _unzipped(data: bytes) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as file:
            unzipped = file.read(MAX_UNPACKED + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise refused("Undecodable", f"cannot be unpacked: {error}") from None
    if len(unzipped) > MAX_UNPACKED:
        raise _too_large()
    return unzipped


def _too_large() -> Refused:
    return refused("TooLarge", f"has more than {MAX_UNPACKED} bytes when unpacked")
