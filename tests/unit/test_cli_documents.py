"""Documents as the command line reads them: files, directories, several in one, and `{file: …}` taken in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from moorage.cli.documents import parse, read, read_all, read_text
from moorage.cli.exit_codes import Failure

APP = """
apiVersion: moorage.dev/v1alpha1
kind: Application
metadata: {name: shop}
spec:
  apps:
    - name: web
      manifests:
        - {file: objects}
        - {apiVersion: v1, kind: Service, metadata: {name: own}}
    - name: db
      manifests: {file: db.yaml}
"""


def test_files_are_taken_in_relative_to_the_document_in_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(APP)
    objects = tmp_path / "objects"
    objects.mkdir()
    (objects / "b.yaml").write_text("kind: Deployment\n---\nkind: ConfigMap\n")
    (objects / "a.json").write_text('{"kind": "List", "items": [{"kind": "Secret"}]}')
    (objects / "notes.txt").write_text("not: read")
    (tmp_path / "db.yaml").write_text("kind: StatefulSet\n")
    (document,) = read(str(tmp_path / "shop.yaml"))
    web, db = document.body["spec"]["apps"]
    assert [m["kind"] for m in web["manifests"]] == ["Secret", "Deployment", "ConfigMap", "Service"]
    assert [m["kind"] for m in db["manifests"]] == ["StatefulSet"]


def test_a_missing_file_names_the_place_in_the_document(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(APP)
    with pytest.raises(
        Failure, match=r"spec\.apps\[0\]\.manifests\[0\]\.file: file or directory .*objects' does not exist"
    ) as wrong:
        read(str(tmp_path / "shop.yaml"))
    assert wrong.value.code == 1


def test_a_directory_is_all_its_documents(tmp_path: Path) -> None:
    (tmp_path / "2.yml").write_text("kind: B\n---\n---\nkind: C\n")
    (tmp_path / "1.json").write_text('{"kind": "A"}')
    assert [d.kind for d in read(str(tmp_path))] == ["A", "B", "C"]


def test_dates_stay_text_as_kubernetes_has_them() -> None:
    (document,) = read_text("kind: X\nspec: {when: 2024-01-01}\n", "x", Path())
    assert document.body["spec"]["when"] == "2024-01-01"


def test_a_key_that_stands_twice_is_refused_with_its_line() -> None:
    with pytest.raises(Failure, match=r"x\.yaml:3: not valid YAML: duplicate key 'kind'"):
        read_text("kind: A\nspec: {}\nkind: B\n", "x.yaml", Path())


@pytest.mark.parametrize("text", ["{", "a: b: c", "- 1\n- 2", "just text", "\t- x", "!!python/object:os.system {}"])
def test_what_is_no_document_is_a_failure_not_a_traceback(text: str) -> None:
    with pytest.raises(Failure, match=r"x\.yaml"):
        read_text(text, "x.yaml", Path())


@pytest.mark.parametrize("text", ["kind: X\nratio: .nan", "kind: X\nratio: -.inf", '{"kind": "X", "ratio": NaN}'])
def test_only_numbers_are_numbers(text: str) -> None:
    try:
        (document,) = read_text(text, "x.yaml", Path())
    except Failure as failure:
        assert "is no number" in str(failure)
    else:
        assert document.body["ratio"] == "NaN", "it is text, which is refused where a number belongs"


def test_a_fleet_needs_no_kind_and_nothing_else_passes_for_one() -> None:
    (document,) = read_text("clusters: []", "f", Path(), fleet=True)
    assert document.body["kind"] == "Fleet"
    with pytest.raises(Failure, match="kind must be Fleet, not Application"):
        read_text("kind: Application", "f", Path(), fleet=True)


def test_the_status_that_get_shows_is_not_sent_back() -> None:
    (document,) = read_text('{"kind": "Application", "spec": {}, "status": {"phase": "Running"}}', "x", Path())
    assert "status" not in document.body


def test_nothing_at_all_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(Failure) as wrong:
        read_all([str(tmp_path)])
    assert wrong.value.code == 2


CHART = """
apiVersion: moorage.dev/v1alpha1
kind: Application
metadata: {name: shop}
spec:
  apps:
    - name: web
      manifests:
        - {chart: charts/web, values: {replicas: 3, image: "nginx:1"}}
        - {apiVersion: v1, kind: Service, metadata: {name: own}}
"""
#: Says what it was called with, as a manifest.
HELM = """#!{python}
import json, sys
values = json.load(sys.stdin)
if "image" not in values:
    sys.exit("Error: execution error at (web/templates/web.yaml:1:3): image is needed")
print("---\\n# Source: web\\n" + json.dumps({{"kind": "Deployment", "argv": sys.argv[1:], "values": values}}))
"""


def with_helm(place: Path, patch: pytest.MonkeyPatch, text: str = HELM) -> None:
    helm = place / "bin" / "helm"
    helm.parent.mkdir()
    helm.write_text(text.format(python=sys.executable))
    helm.chmod(0o755)
    patch.setenv("PATH", str(helm.parent))


def test_a_chart_is_rendered_with_its_values_under_the_name_of_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_helm(tmp_path, monkeypatch)
    (tmp_path / "charts" / "web").mkdir(parents=True)
    (tmp_path / "shop.yaml").write_text(CHART)
    (document,) = read(str(tmp_path / "shop.yaml"))
    made, own = document.body["spec"]["apps"][0]["manifests"]
    assert made["values"] == {"replicas": 3, "image": "nginx:1"}
    chart = str(tmp_path / "charts/web")
    assert made["argv"] == ["template", "web", chart, "--include-crds", "--skip-tests", "--values", "-"]
    assert own["kind"] == "Service"


def test_charts_that_cannot_be_rendered_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(CHART)
    with pytest.raises(Failure, match=r"manifests\[0\].chart: there is no .*charts/web"):
        read(str(file))
    (tmp_path / "charts" / "web").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failure, match="no program `helm` on the path"):
        read(str(file))
    with_helm(tmp_path, monkeypatch)
    file.write_text(CHART.replace(', image: "nginx:1"', ""))
    with pytest.raises(Failure, match="image is needed"):
        read(str(file))
    file.write_text(CHART.replace("{replicas: 3", "[{replicas: 3").replace('"nginx:1"}', '"nginx:1"}]'))
    with pytest.raises(Failure, match="values: must be an object"):
        read(str(file))


def test_a_chart_with_more_than_is_known_is_left_to_the_mesh_to_refuse(tmp_path: Path) -> None:
    (document,) = read_text(CHART.replace("values:", "value:"), "given", tmp_path)
    assert document.body["spec"]["apps"][0]["manifests"][0]["chart"] == "charts/web"


def test_aliases_cannot_multiply() -> None:
    text = "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]" for n in range(1, 9))
    with pytest.raises(Failure, match="aliases"):
        parse(text, "bomb.yaml")
    with pytest.raises(Failure, match="deeper"):
        parse('{"a":' * 100_000, "deep.json")
    with pytest.raises(Failure, match="deeper"):
        parse("[" * 600_000, "deep.yaml")
