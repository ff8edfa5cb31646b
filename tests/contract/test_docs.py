"""Generated pages match their tables in code, and links between files resolve."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moorage.mesh import docs
from moorage.mesh.discovery import installed
from moorage.model import reasons

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "made"), [("subjects", docs.markdown(installed())), ("reasons", reasons.markdown())])
def test_generated_pages_match_their_tables(page: str, made: str) -> None:
    assert (ROOT / "docs" / f"{page}.md").read_text() == made, "run `make docs`"


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])
def test_links_between_files_resolve(page: str) -> None:
    here = ROOT / page
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", here.read_text()):
        assert (here.parent / target).exists(), f"{page} links to {target}"


def test_namespace_packages_have_no_init_file() -> None:
    """An `__init__.py` there passes the type checker and breaks at run time: two source roots share one namespace."""
    for root in ("shared", "services"):
        assert not (ROOT / root / "moorage" / "__init__.py").exists()
        for package in (ROOT / root / "moorage").iterdir():
            if package.is_dir() and package.name != "__pycache__":
                assert (package / "py.typed").exists(), f"{package.name} has no py.typed"
