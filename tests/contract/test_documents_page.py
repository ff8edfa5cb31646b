"""The page on documents has every field, code and verb of the code, and its examples are accepted as they are; so is the
example that `moorage up --example` applies."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

import moorage.cli.example
from moorage.intents.core import transitions, validate
from moorage.intents.core.resolve import resolve
from moorage.intents.core.validate import Accepted
from moorage.model import documents as model
from moorage.parsing import yaml_json

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "documents.md").read_text()
EXAMPLES = [
    d for block in re.findall(r"(?<!-->\n)```yaml\n(.*?)```", PAGE, re.DOTALL) for d in yaml.safe_load_all(block)
]
(FRAGMENT,) = (yaml.safe_load(block) for block in re.findall(r"-->\n```yaml\n(.*?)```", PAGE, re.DOTALL))


def test_the_examples_are_accepted_together() -> None:
    first, *others = EXAMPLES
    given = validate.application(first)
    found = resolve(given, [validate.intent(other, {}) for other in others])
    assert [a.replicas for a in found.apps] == [2, 1] and not found.warnings
    assert found.apps[0].shapes[0].resources["hugepages-1Gi"] == 2 << 30


def test_the_part_of_a_document_is_accepted_in_one() -> None:
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "video"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "encoder", "image": "i"}]},
            },
        },
    }
    app = {"name": "video", "manifests": [manifest], **FRAGMENT}
    document = {**EXAMPLES[0], "metadata": {"name": "video"}, "spec": {"apps": [app]}}
    found = resolve(validate.application(document), [])
    assert {group.suffix for group in found.apps[0].shapes[0].groups} == {"_A", "_C"} and not found.warnings


def test_every_field_is_documented() -> None:
    kinds = [k for k in vars(model).values() if isinstance(k, type) and issubclass(k, msgspec.Struct)]
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            assert re.search(rf"\b{field.encode_name}\b", PAGE), f"{kind.__name__}.{field.encode_name} is not explained"
    assert len(kinds) > 10


def test_every_code_and_verb_is_documented() -> None:
    package = Path(validate.__file__).parent
    modules = [module for module in package.glob("*.py") if not module.name.startswith("v2_")]
    source = "".join(module.read_text() for module in (*modules, Path(yaml_json.__file__)))
    codes = set(re.findall(r'(?:error\(\s*[^,]+,|code=|_bad\()\s*"([A-Z][a-zA-Z]+)"', source))
    assert not {c for c in codes if f"`{c}`" not in PAGE} and len(codes) > 12
    for verb, states in transitions.VERBS.items():
        assert f"| `{verb}` | {', '.join(states)} |" in PAGE


@pytest.mark.parametrize("name", ["application.yaml"])
def test_the_packaged_example_is_accepted(name: str) -> None:
    text = (Path(next(iter(moorage.cli.example.__path__))) / name).read_text()
    assert isinstance(validate.accept(yaml.safe_load(text), {}), Accepted)
