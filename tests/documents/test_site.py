"""The site: it has every page, its links lead to pages and sections, and it fetches nothing from elsewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from documents.blocks import PAGES, ROOT
from scripted.site import laid_out, led

CONFIG = ROOT / "mkdocs.yml"


class _Loaded(HTMLParser):
    """Addresses that a browser fetches by itself with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in {"script", "img", "iframe", "source"}:
            self.addresses.append(given.get("src") or "")
        if tag == "link" and given.get("rel") not in {"canonical", "prev", "next"}:
            self.addresses.append(given.get("href") or "")


def _pages(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    return [page for value in values for page in _pages(value)]  # type: ignore[attr-defined]


def test_every_page_has_a_place_in_the_navigation_and_no_other() -> None:
    (given,) = re.findall(r"^nav:\n(.*)", CONFIG.read_text(), re.M | re.S)
    placed = _pages(yaml.safe_load(given))

    assert len(placed) == len(set(placed))
    pages = {name for name in laid_out(ROOT) if name.endswith(".md")}
    assert pages - set(placed) == set(), "write them into nav of mkdocs.yml"
    assert set(placed) - pages == set(), "take them out of nav of mkdocs.yml"


def test_pages_lie_there_with_what_they_link_to() -> None:
    found = laid_out(ROOT)
    readme = str(found["index.md"])

    docs = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if ROOT / "docs" in page.parents}
    assert docs <= set(found)
    assert "](quickstart.md)" in readme
    assert "](examples/index.md)" in readme
    assert "](index.md#install-it-on-your-cluster)" in str(found["quickstart.md"])
    assert {"charts/tidepool/values.yaml", "LICENSE", "images/console-pools.png"} <= set(found)
    assert all((ROOT / "examples" / path.name).exists() for path in found.values() if isinstance(path, Path)
               and path.parent.name == "examples")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted", "reason"),
    [
        ("[a](docs/keys.md#use-it)", "[a](keys.md#use-it)", "docs/ is the top of the site"),
        ("[a](examples/hpa.yaml) [b](examples/)", "[a](examples/hpa.yaml) [b](examples/index.md)", "beside it"),
        ("`[a](docs/keys.md)`", "`[a](docs/keys.md)`", "what looks like a link in code is none"),
        ("[a](https://x.example/docs/y.md)", "[a](https://x.example/docs/y.md)", "other places stay"),
        ("**Why.**\n- a\n  b\n- c", "**Why.**\n\n- a\n  b\n- c", "a list after a paragraph is a list"),
        ("```sh\nx\n- y\n```", "```sh\nx\n- y\n```", "code stays as it is"),
    ],
)
def test_pages_of_the_repository_become_pages_of_the_site(text: str, wanted: str, reason: str) -> None:
    assert led(text, "README.md") == wanted, reason


def _built(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "zensical"), "build", "--clean", "--strict"],
        cwd=folder, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip


def _lay(folder: Path) -> None:
    (folder / "mkdocs.yml").write_text(CONFIG.read_text())
    for name, what in laid_out(ROOT).items():
        file = folder / "build" / "pages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(what.encode() if isinstance(what, str) else what.read_bytes())


@pytest.mark.traffic
def test_it_builds_strictly_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    _lay(tmp_path)
    done = _built(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    loaded = _Loaded()
    pages = sorted((tmp_path / "build" / "site").rglob("*.html"))
    for page in pages:
        loaded.feed(page.read_text())
    styles = "".join(style.read_text() for style in (tmp_path / "build" / "site").rglob("*.css"))

    assert len(pages) >= len(PAGES)
    assert [address for address in loaded.addresses if "//" in address.partition("?")[0]] == []
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", styles) == []


@pytest.mark.traffic
@pytest.mark.parametrize("link", ["[a](nowhere.md)", "[a](scaling.md#nothing)"])
def test_a_link_to_nowhere_ends_the_build(tmp_path: Path, link: str) -> None:
    _lay(tmp_path)
    page = tmp_path / "build" / "pages" / "concepts.md"
    page.write_text(f"{page.read_text()}\n{link}\n")

    assert _built(tmp_path).returncode != 0
