"""The documentation as a site: each page in its navigation, each decision in their list, nothing from elsewhere."""

import yaml

from tests.architecture.repository import ROOT

DOCS = ROOT / "docs"


class _Loader(yaml.SafeLoader):
    """Reads MkDocs' file, tags included, for its navigation."""


_Loader.add_multi_constructor("tag:", lambda loader, suffix, node: None)


def site():
    return yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader=_Loader)


def pages(entries):
    for entry in entries:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else pages(target)


def test_every_page_is_in_the_navigation_once():
    listed = list(pages(site()["nav"]))
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(there - {page for page in there if page.startswith("adr/0")})


def test_every_decision_is_listed():
    index = (DOCS / "adr" / "index.md").read_text("utf-8")
    missing = [path.name for path in sorted((DOCS / "adr").glob("0*.md")) if f"({path.name})" not in index]
    assert missing == []


def test_the_site_is_strict_and_asks_nobody():
    settings = site()
    assert settings["strict"] is True
    assert settings["theme"]["font"] is False
    assert settings["plugins"] == ["search"], "others may load from elsewhere"
