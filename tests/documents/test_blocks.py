"""Every block of the pages is checked by somebody; one that nobody checks fails here."""

import re

import pytest

from documents import blocks
from documents.blocks import SHELLS, Block, Command
from documents.languages import LANGUAGES, needs
from documents.programs import PROGRAMS, RUN_BY, needed_for

ALL = blocks.blocks()


@pytest.mark.parametrize("page", sorted({block.page for block in ALL}))
def test_each_block_is_what_it_says(page: str) -> None:
    for block in ALL:
        if block.page == page:
            assert block.language in LANGUAGES, f"{block}: write its language, one of {', '.join(LANGUAGES)}"
            try:
                LANGUAGES[block.language](block)
            except BaseException as error:  # argparse exits
                error.add_note(f"in {block}")
                raise


def test_what_a_block_needs_stands_in_its_title() -> None:
    unmarked = [f"{block}: {need}" for block in ALL for need in needs(block) if need not in block.title]

    assert unmarked == []
    assert [str(block) for block in ALL if block.title and not block.title.startswith("Needs ")] == []


def test_each_command_is_run_by_a_test_or_marked() -> None:
    """What neither runs here nor says what it needs would be believed unseen."""
    shells = [(block, each) for block in ALL if block.language in SHELLS for each in blocks.commands(block)]
    idle = [f"{block}: {each}" for block, each in shells if each.program not in RUN_BY and not needed_for(each)]

    assert idle == [], "have a test run it (programs.py, RUN_BY), or say what it needs"
    assert [test for test in RUN_BY.values() if not (blocks.ROOT / test).is_file()] == []


@pytest.mark.parametrize("block", [pytest.param(block, id=str(block)) for block in ALL if block.title])
def test_what_a_block_needs_is_said_in_words_too(block: Block) -> None:
    """Code forges do not show a block's title: the section says it, or a comment in the block."""
    said = " ".join([blocks.section_of(block), *re.findall(r"# .*", block.text)]).lower()
    things = set(re.findall(r"[\w-]+", block.title.removeprefix("Needs ").partition(" for ")[0].lower()))

    assert {thing for thing in things - {"a", "and", "with"} if thing.rstrip("s") not in said} == set()


def test_there_is_something_of_everything() -> None:
    """Else a table has what is no longer needed, or the reader of blocks finds nothing."""
    assert {block.language for block in ALL} == set(LANGUAGES)
    shells = [block for block in ALL if block.language in SHELLS]
    assert {command.program for block in shells for command in blocks.commands(block)} == set(PROGRAMS)


@pytest.mark.parametrize(
    ("text", "words", "reason"),
    [
        ("make demo  # all of it\n\n# more", [("make", "demo")], "comments are for people"),
        ("a \\\n  --b c\nd", [("a", "--b", "c"), ("d",)], "a command may take lines"),
        ("a --c='*.x, y' \"b c\"", [("a", "--c=*.x, y", "b c")], "quotes are a shell's"),
        ("a -o csv > file.csv", [("a", "-o", "csv")], "where it prints to is no word of it"),  # but `into`
        ("A=b c", [("c",)], "the environment is no word of it either"),
    ],
)
def test_commands_are_read_as_a_shell_reads_them(text: str, words: list[tuple[str, ...]], reason: str) -> None:
    assert [command.words for command in blocks.commands(Block("page", 1, "sh", "", text))] == words, reason


def test_what_a_command_reads_and_says_belongs_to_it() -> None:
    (given,) = blocks.commands(Block("page", 1, "sh", "", "a -f - <<END &\nx: 1\nEND"))
    (asked,) = blocks.commands(Block("page", 1, "console", "", "$ a\n1\n2"))
    (kept,) = blocks.commands(Block("page", 1, "sh", "", "a > b.yaml"))

    assert given == Command(("a", "-f", "-"), stdin="x: 1\n", background=True)
    assert asked == Command(("a",), said="1\n2\n")
    assert kept == Command(("a",), into="b.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```\nnever ended", "does not end"),
        ("```sh {linenums=1}\n```", "write a language"),
        ("```sh\na | b\n```", "one command a line"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _ = [blocks.commands(block) for block in blocks.read(text, "page")]
