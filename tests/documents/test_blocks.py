"""Every block of the pages is checked by somebody; one that nobody checks fails here."""

import pytest

from documents import blocks
from documents.blocks import Block, Command
from documents.languages import LANGUAGES, needs
from documents.programs import PROGRAMS

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


def test_there_is_something_of_everything() -> None:
    """Else a table has what is no longer needed, or the reader of blocks finds nothing."""
    assert {block.language for block in ALL} == set(LANGUAGES)
    shells = [block for block in ALL if block.language in {"sh", "console"}]
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
