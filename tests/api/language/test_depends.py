"""The language of `depends`: what it reads, and what it says to what it cannot read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_api.language.depends import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    All,
    Any,
    DependsError,
    Ended,
    Expression,
    Not,
    Result,
    ends,
    parse,
)

A, B, C = Ended("a"), Ended("b"), Ended("c")


@pytest.mark.parametrize(
    ("text", "expected", "reason"),
    [
        ("plan", Ended("plan"), "a bare step"),
        ("web-search_2", Ended("web-search_2"), "hyphens, underscores and digits belong to the name"),
        ("c.Failed", Ended("c", Result.FAILED), "a result"),
        ("a && b && c", All((A, B, C)), "a chain is one level"),
        ("a || b && c", Any((A, All((B, C)))), "&& binds tighter than ||"),
        ("(a || b) && c", All((Any((A, B)), C)), "parentheses"),
        ("a && (b || c.Failed)", All((A, Any((B, Ended("c", Result.FAILED))))), "the example of the design"),
        ("!a && b", All((Not(A), B)), "! binds tightest"),
        ("!(a && b)", Not(All((A, B))), "! before parentheses"),
        ("!!a", Not(Not(A)), "twice not"),
        ("  a\n&&\tb ", All((A, B)), "white space, also as YAML's folded lines leave it"),
        (
            "a.AllFailed||b.AnySucceeded",
            Any((Ended("a", Result.ALL_FAILED), Ended("b", Result.ANY_SUCCEEDED))),
            "results of items",
        ),
    ],
)
def test_reads(text: str, expected: Expression, reason: str) -> None:
    assert parse(text) == expected, reason


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "expected the name of a step before the end"),
        ("a &&", 5, "expected the name of a step before the end"),
        ("a & b", 3, "write && for and"),
        ("a | b", 3, "write || for or"),
        ("a, b", 2, "write && between steps"),
        ("a and b", 3, "write && for 'and'"),
        ("a or b", 3, "write || for 'or'"),
        ("a b", 3, "expected && or || before 'b'"),
        ("(a && b", 8, "expected ) before the end, for the ( at 1"),
        ("a)", 2, "this parenthesis was never opened"),
        ("a.", 3, "expected a result, such as Failed"),
        ("a.failed", 3, "did you mean 'Failed'?"),
        ("a.Suceeded", 3, "did you mean 'Succeeded'?"),
        ("a.Daemoned", 3, "no step runs as a daemon"),
        ("a.Xyzzy", 3, "there are Succeeded, Failed"),
        ("{{ steps.a }}", 1, "depends is no template"),
        ("'a'", 1, "without quotes"),
        ("a == b", 3, "put comparisons into when"),
        ("a && é", 6, "'é' has no meaning"),
        ("(" * (MAX_DEPTH + 2) + "a", MAX_DEPTH + 2, "nested deeper than"),
        ("!" * 200 + "a", MAX_DEPTH + 2, "nested deeper than"),
        ("a" * (MAX_CHARACTERS + 1), MAX_CHARACTERS + 1, "longer than"),
    ],
)
def test_refuses_with_place_and_remedy(text: str, column: int, words: str) -> None:
    with pytest.raises(DependsError) as caught:
        parse(text)

    assert words in str(caught.value)
    assert caught.value.column == column
    assert f"at character {column}: " in str(caught.value)


_names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,6}", fullmatch=True)
_ended = st.builds(Ended, _names, st.none() | st.sampled_from(Result))


def _compound(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, inner) | st.builds(All, several) | st.builds(Any, several)


_expressions = st.recursive(_ended, _compound, max_leaves=12)


@given(_expressions)
def test_what_is_written_reads_back_the_same(expression: Expression) -> None:
    assert parse(str(expression)) == expression


@given(st.text(alphabet="ab.&|!() \n-_,FailedSucceeded{}'\"=\u00e9\u3000", max_size=60) | st.text(max_size=60))
def test_any_text_is_read_or_refused_within_its_bounds(text: str) -> None:
    found: Expression | DependsError
    try:
        found = parse(text)
    except DependsError as error:
        found = error

    if isinstance(found, DependsError):
        assert 1 <= found.column <= len(text) + 1
    else:
        assert all(end.step in text for end in ends(found))
