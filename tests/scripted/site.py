"""`make docs`: lays out the pages of the site in build/pages, where the generator finds them.

In the repository pages link to each other, and to examples and other files, as they lie there, for those who read
them there. In the site README.md is the first page, docs/ lies at the top, and what pages link to outside of docs/
lies beside it; links are led to where the same thing lies.
"""

import posixpath
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = Path("build/pages")
_DOCS: Final = "docs/"
_README: Final = "README.md"
_EXAMPLES: Final = "examples/index.md"
# Code first, so that what looks like a link in it is left alone.
_LINK: Final = re.compile(r"```.*?^ *```|`[^`\n]*`|\]\((?P<to>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)", re.M | re.S)
_AFTER_A_PARAGRAPH: Final = re.compile(
    r"(?P<code>^ *```.*?^ *```)|^(?P<before>(?!- )[^\s|>#][^\n]*)\n- ", re.M | re.S
)
_LANGUAGES: Final = {".yaml": "yaml", ".py": "python"}


def laid_out(root: Path) -> Mapping[str, Path | str]:
    """Name in the site of every page and file: a page's text, a file's path."""
    found: dict[str, Path | str] = {_EXAMPLES: _examples(root / "examples")}
    ahead = [_README, *(path.relative_to(root).as_posix() for path in sorted((root / "docs").rglob("*.*")))]
    while ahead:
        source = ahead.pop()
        place = _place(source)
        if place in found or not (root / source).is_file():
            continue
        if not source.endswith(".md"):
            found[place] = root / source
            continue
        text = (root / source).read_text()
        found[place] = led(text, source)
        ahead += _targets(text, source)
    return found


def led(text: str, source: str) -> str:
    """A page of the repository as the site has it: its links, and a blank line before each list.

    Without that the generator takes a list for more of the paragraph before it, which code forges do not.
    """
    found = _LINK.sub(lambda link: _link(link, source), text)
    return _AFTER_A_PARAGRAPH.sub(lambda list_: list_["code"] or f"{list_['before']}\n\n- ", found)


def main(root: Path = ROOT) -> None:
    """Write them; what was there before goes."""
    shutil.rmtree(root / PAGES, ignore_errors=True)
    for name, what in laid_out(root).items():
        file = root / PAGES / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, str):
            file.write_text(what)
        else:
            shutil.copyfile(what, file)


def _place(source: str) -> str:
    """Where something of the repository lies in the site."""
    if source == "examples":
        return _EXAMPLES
    return "index.md" if source == _README else source.removeprefix(_DOCS)


def _link(link: re.Match[str], source: str) -> str:
    if link["to"] is None or ":" in link["to"]:
        return link[0]
    place = _place(posixpath.normpath(posixpath.join(posixpath.dirname(source), link["to"])))
    here = posixpath.dirname(_place(source))
    return f"]({posixpath.relpath(place, here or '.')}{link['anchor'] or ''})"


def _targets(text: str, source: str) -> Iterator[str]:
    for link in _LINK.finditer(text):
        if link["to"] and ":" not in link["to"]:
            yield posixpath.normpath(posixpath.join(posixpath.dirname(source), link["to"]))


def _examples(folder: Path) -> str:
    """A page with every example."""
    text = "# Examples\n\nEach is applied or run by a test.\n"
    for path in sorted(folder.rglob("*")):
        if path.suffix in _LANGUAGES:
            name = path.relative_to(folder).as_posix()
            text += f"\n## {name}\n\n```{_LANGUAGES[path.suffix]}\n{path.read_text()}```\n"
    return text


if __name__ == "__main__":
    sys.exit(main())
