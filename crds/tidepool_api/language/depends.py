"""The language of `depends`, in Argo's words: `a && (b || c.Failed)`, `!a.Skipped`.

    or     = and ("||" and)*
    and    = not ("&&" not)*
    not    = "!" not | "(" or ")" | step ["." result]

A step without a result means `Succeeded || Skipped`, as in Argo's enhanced depends (without its daemons).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidepool_api.language.problems import near_miss

MAX_CHARACTERS: Final = 2048  # as the CRD bounds the field
MAX_DEPTH: Final = 32


class Result(StrEnum):
    """How a step ended. The last two look at the items of a step with `withItems` or `withParam`."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    ERRORED = "Errored"
    SKIPPED = "Skipped"
    OMITTED = "Omitted"
    ANY_SUCCEEDED = "AnySucceeded"
    ALL_FAILED = "AllFailed"


OF_ITEMS: Final = frozenset({Result.ANY_SUCCEEDED, Result.ALL_FAILED})


@dataclass(frozen=True, slots=True)
class Ended:
    """True once the step has ended with this result; None stands for Succeeded or Skipped."""

    step: str
    result: Result | None = None

    def __str__(self) -> str:
        return self.step if self.result is None else f"{self.step}.{self.result}"


@dataclass(frozen=True, slots=True)
class Not:
    """True when the operand is not."""

    operand: "Expression"

    def __str__(self) -> str:
        return f"!{_inner(self.operand)}"


@dataclass(frozen=True, slots=True)
class All:
    """True when every operand is; two operands or more."""

    operands: tuple["Expression", ...]

    def __str__(self) -> str:
        return " && ".join(_inner(operand) for operand in self.operands)


@dataclass(frozen=True, slots=True)
class Any:
    """True when one operand is; two operands or more."""

    operands: tuple["Expression", ...]

    def __str__(self) -> str:
        return " || ".join(_inner(operand) for operand in self.operands)


Expression = Ended | Not | All | Any


class DependsError(ValueError):
    """The text is no `depends` expression; `column` counts characters from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(f"at character {column}: {message}")
        self.column = column


def parse(text: str) -> Expression:
    """The expression that the text writes.

    Raises DependsError, which names the place and the remedy.
    """
    if len(text) > MAX_CHARACTERS:
        raise DependsError(f"the expression is longer than {MAX_CHARACTERS} characters", MAX_CHARACTERS + 1)
    parser = _Parser(text)
    expression = parser.any(depth=0)
    parser.expect_end()
    return expression


def ends(expression: Expression) -> Iterator[Ended]:
    """Every step result that the expression looks at, from left to right."""
    match expression:
        case Ended():
            yield expression
        case Not(operand):
            yield from ends(operand)
        case All(operands) | Any(operands):
            for operand in operands:
                yield from ends(operand)


def _inner(expression: Expression) -> str:
    return f"({expression})" if isinstance(expression, All | Any) else str(expression)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # name, &&, ||, !, (, ), ., end
    text: str
    column: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


_TOKEN: Final = re.compile(r"\s*(?:(?P<name>[A-Za-z0-9_][A-Za-z0-9_-]*)|(?P<sign>&&|\|\||[!().]))")
# What people write for the signs, and what they meant.
_REMEDIES: Final = {
    "&": "write && for and",
    "|": "write || for or",
    ",": "write && between steps that must all have ended",
    "{": "depends is no template; put templates into when",
    "'": "write step names without quotes",
    '"': "write step names without quotes",
    "=": "depends looks at results, as in a.Failed; put comparisons into when",
}
_WORDS: Final = {"and": "&&", "or": "||", "not": "!"}


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            column = position + len(text[position:]) - len(text[position:].lstrip()) + 1
            sign = text[column - 1]
            remedy = _REMEDIES.get(sign, "step names, results, &&, ||, ! and parentheses may stand here")
            raise DependsError(f"{sign!r} has no meaning: {remedy}", column)
        kind = "name" if match["name"] else match["sign"]
        yield _Token(kind, match["name"] or match["sign"], match.end() - len(match["name"] or match["sign"]) + 1)
        position = match.end()
    yield _Token("end", "", len(text) + 1)


class _Parser:
    def __init__(self, text: str) -> None:
        self._rest = _tokens(text)
        self._next = next(self._rest)

    def any(self, depth: int) -> Expression:
        operands = [self._all(depth)]
        while self._take("||"):
            operands.append(self._all(depth))
        return operands[0] if len(operands) == 1 else Any(tuple(operands))

    def expect_end(self) -> None:
        found = self._next
        if found.kind == "end":
            return
        if found.text in _WORDS:
            raise DependsError(f"write {_WORDS[found.text]} for {found.text!r}", found.column)
        if found.kind == ")":
            raise DependsError("this parenthesis was never opened", found.column)
        raise DependsError(f"expected && or || before {found}", found.column)

    def _all(self, depth: int) -> Expression:
        operands = [self._not(depth)]
        while self._take("&&"):
            operands.append(self._not(depth))
        return operands[0] if len(operands) == 1 else All(tuple(operands))

    def _not(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise DependsError(f"nested deeper than {MAX_DEPTH}", self._next.column)
        if self._take("!"):
            return Not(self._not(depth + 1))
        opened = self._next
        if not self._take("("):
            return self._ended()
        expression = self.any(depth + 1)
        if not self._take(")"):
            raise DependsError(f"expected ) before {self._next}, for the ( at {opened.column}", self._next.column)
        return expression

    def _ended(self) -> Ended:
        step = self._name("the name of a step")
        return Ended(step.text, self._result() if self._take(".") else None)

    def _result(self) -> Result:
        word = self._name("a result, such as Failed")
        if word.text == "Daemoned":
            raise DependsError("no step runs as a daemon: leave Daemoned out", word.column)
        try:
            return Result(word.text)
        except ValueError:
            known = {result.value.lower(): result.value for result in Result}
            hint = f"; did you mean {known[word.text.lower()]!r}?" if word.text.lower() in known else ""
            hint = hint or near_miss(word.text, known.values()) or f"; there are {', '.join(known.values())}"
            raise DependsError(f"{word.text!r} is no result of a step{hint}", word.column) from None

    def _name(self, wanted: str) -> _Token:
        found = self._next
        if found.kind != "name":
            raise DependsError(f"expected {wanted} before {found}", found.column)
        self._advance()
        return found

    def _take(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        self._advance()
        return True

    def _advance(self) -> None:
        self._next = next(self._rest)
