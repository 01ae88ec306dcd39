"""The docs site: it builds, a broken link fails it, and its pages load nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=[\"']?(https?:)?//", re.IGNORECASE)


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a copy of the docs."""
    zensical = Path(sys.executable).with_name("zensical")
    command = [str(zensical), "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with the docs and their configuration."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    return tmp_path


def test_the_site_builds_and_loads_nothing_from_elsewhere(docs: Path) -> None:
    """Every page of docs/ is in the site, without a script, style or picture of another server."""
    built = build(docs)
    assert built.returncode == 0, built.stdout + built.stderr
    site = docs / ".tidegate/site"
    pages = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    written = {path.relative_to(docs / "docs") for path in (docs / "docs").rglob("*.md")}
    assert {str(page).replace("README.md", "index.md") for page in written} <= {str(page) for page in pages}
    for path in site.rglob("*.html"):
        assert not LOADED.search(path.read_text("utf-8")), path


def test_every_page_can_be_reached_from_the_navigation() -> None:
    """A page that only links lead to is hardly found."""
    listed = set(re.findall(r"- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written == listed


def test_a_link_that_leads_nowhere_fails_the_build(docs: Path) -> None:
    """A missing page and a missing section are errors; `test_docs.py` finds missing pictures."""
    page = docs / "docs/concepts.md"
    page.write_text(f"{page.read_text('utf-8')}\n[x](nowhere.md)\n[x](glossary.md#nowhere)\n", "utf-8")
    built = build(docs)
    assert built.returncode != 0
    told = built.stdout + built.stderr
    assert "2 issues found" in told
    assert "page does not exist" in told
    assert "anchor does not exist" in told
