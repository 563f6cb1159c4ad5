"""Links between pages, and to sections of them, lead somewhere; those to other places are not followed."""

import re
from functools import cache
from pathlib import Path

import pytest

from documents.blocks import PAGES, ROOT

_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.M | re.S)
_FENCED = re.compile(r"^ *```.*?^ *```", re.M | re.S)
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
LINKING = [*PAGES, ROOT / "CHANGELOG.md"]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Of a page's headings, as code forges and the site make them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.*)$", _FENCED.sub("", page.read_text()), re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return frozenset(anchor if not number else f"{anchor}-{number}"
                     for anchor, last in found.items() for number in range(last + 1))  # fmt: skip


def broken(page: Path, text: str) -> list[str]:
    """Links of a text that lead nowhere from where the page lies."""
    found = []
    for path, anchor in _LINK.findall(_CODE.sub("", text)):
        target = page if not path else (page.parent / path).resolve()
        if ":" in path:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(f"{path}#{anchor}" if anchor else path)
    return found


def test_links_lead_somewhere() -> None:
    assert [f"{page.name}: {link}" for page in LINKING for link in broken(page, page.read_text())] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[a](nowhere.md)", "no such page"),
        ("[a](docs/scaling.md#nothing)", "no such section of another page"),
        ("[a](#nothing)", "no such section of this one"),
    ],
)
def test_a_link_to_nowhere_is_found(text: str, reason: str) -> None:
    page = ROOT / "README.md"
    good = "`[a](nowhere.md)` [b](docs/scaling.md#hpa) [c](#see-it-run) [d](https://nowhere.example/#x)"

    assert len(broken(page, f"{good}\n{text}")) == 1, reason


def test_every_page_of_the_docs_is_reached_from_the_readme() -> None:
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = _LINK.findall(_CODE.sub("", page.read_text()))
        ahead += [(page.parent / path).resolve() for path, _ in links if path and ":" not in path]

    assert [str(page) for page in PAGES if page not in reached] == []
