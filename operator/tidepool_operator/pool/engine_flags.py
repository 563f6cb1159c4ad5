"""What is wrong with the arguments of an engine, by the table of vLLM 0.32's flags.

The engine itself would say most of it only after the pod has been placed and its image pulled, and some of it (a
flag that is given twice) never. Where the image is vLLM 0.32 for certain these are reasons to refuse the spec;
with any other image they are only told, since it may have other flags. Values are not repeated: one may be secret.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from tidepool_api.contract import ENGINE_CONTAINER
from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool import engine_args
from tidepool_operator.pool.vllm_flags import FLAGS, QUANTIZATIONS

VERSION: Final = "0.32"
_IMAGE: Final = re.compile(rf"(^|/)vllm-openai:v{re.escape(VERSION)}(\.|$|-)")
_NUMBER: Final = re.compile(r"-\d+(\.\d+)?$")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: all its names, how many words follow it (as the table says), and the values that it takes."""

    names: tuple[str, ...]
    words: str
    choices: tuple[str, ...]


def _table() -> dict[str, Flag]:
    found: dict[str, Flag] = {}
    for line in re.sub(r"\n +", "", FLAGS).strip().splitlines():
        names, words, *choices = line.split(" ")
        flag = Flag(tuple(names.split(",")), words, tuple(choices[0].split(",")) if choices else ())
        found |= dict.fromkeys(flag.names, flag)
    return found


_FLAGS: Final[Mapping[str, Flag]] = _table()
_QUANTIZATIONS: Final = tuple(QUANTIZATIONS.split())
_SPECULATIVE: Final = _FLAGS["--spec-method"].choices


@dataclass(frozen=True, slots=True)
class _Given:
    """One flag as it is given: where (None: by another field), by which name, with which values."""

    index: int | None
    name: str
    part: str  # what follows the first dot: one member of a flag that holds a document
    flag: Flag
    values: tuple[str, ...]


def faults(pool: ModelPool) -> list[str]:
    """All that is wrong, each with its field and the remedy."""
    return [*_of_fields(pool), *_of_arguments(engine_args.arguments(pool), len(pool.spec.engine.args))]


def certain(pool: ModelPool) -> bool:
    """Whether the arguments go to vLLM 0.32 itself, so that its table has the last word."""
    image = pool.spec.engine.image.partition("@")[0]
    containers = (pool.spec.pod_template.get("spec") or {}).get("containers") or []
    return _IMAGE.search(image) is not None and not any(map(_has_command, containers))


def _has_command(container: Any) -> bool:  # noqa: ANN401 - podTemplate is free in its form
    return isinstance(container, Mapping) and container.get("name") == ENGINE_CONTAINER and "command" in container


def _of_fields(pool: ModelPool) -> Iterator[str]:
    engine = pool.spec.engine
    if engine.quantization is not None and engine.quantization not in _QUANTIZATIONS:
        yield (
            f"spec.engine.quantization: vLLM {VERSION} has no {engine.quantization}; "
            f"{_nearest(engine.quantization, _QUANTIZATIONS)}"
        )
    if engine.speculative is not None and engine.speculative.method not in _SPECULATIVE:
        yield (
            f"spec.engine.speculative.method: vLLM {VERSION} has no {engine.speculative.method}; "
            f"{_nearest(engine.speculative.method, _SPECULATIVE)}"
        )


def _of_arguments(words: Sequence[str], own: int) -> Iterator[str]:
    """`own`: so many at the end are the user's; what other fields give is right in itself."""
    given: list[_Given] = []
    start = len(words) - own
    at = 0
    while at < len(words):
        end = at + 1
        # What a field gives takes nothing from the user's arguments.
        while end < len(words) and end != start and not _is_flag(words[end]):
            end += 1
        where = f"spec.engine.args[{at - start}]: "
        try:
            one = _read(words[at], words[at + 1 : end], at - start if at >= start else None)
        except ValueError as error:
            yield f"{where}{error}"
        else:
            yield from (f"{where}{fault}" for fault in _alone(one) if at >= start)
            given.append(one)
        at = end
    yield from _together(given)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and _NUMBER.match(word) is None


def _read(word: str, following: Sequence[str], index: int | None) -> _Given:
    """One flag with what follows it. Raises ValueError, with what to do, for one that vLLM does not have."""
    if not _is_flag(word):
        raise ValueError("stands behind no flag; take it out, or write it as --flag=value")
    left, equals, value = word.partition("=")
    name, _, part = left.partition(".")
    if name.startswith("-O") and name != "-O":
        name, equals, value = "--optimization-level", "=", name[2:] or value
    elif name == "-O":
        name = "--optimization-level"
    name = _whole(name.replace("_", "-") if name.startswith("--") else name)
    return _Given(index, name, part.rstrip("+"), _FLAGS[name], (*([value] if equals else []), *following))


def _whole(name: str) -> str:
    """The full name of a flag that may be cut short, as argparse completes it."""
    if name in _FLAGS:
        return name
    begun = [known for known in _FLAGS if known.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise ValueError(f"{name} may be {', '.join(sorted(begun)[:4])}; write it out")
    longs = [known for known in _FLAGS if known.startswith("--")]
    raise ValueError(f"{name} is no flag of vLLM {VERSION}; {_nearest(name, longs)}")


def _nearest(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word, known, 1, 0.6)
    return f"did you mean {close[0]}?" if close else "take it out, or correct it"


def _alone(one: _Given) -> Iterator[str]:
    if one.part:
        return  # a member of a document, which the table does not describe
    count = len(one.values)
    if one.flag.words == "0" and count:
        yield f"{one.name} takes no value; write {one.name}, or --no-{one.name.lstrip('-')} where there is one"
    elif one.flag.words in "1*+" and not count:
        yield f"{one.name} needs a value; write {one.name}=VALUE"
    elif one.flag.words in "1*?" and count > 1:
        yield f"{one.name} takes one value; take out what follows it"
    elif one.flag.choices and not set(one.values) <= set(one.flag.choices):
        yield f"{one.name} takes only {', '.join(one.flag.choices)}; choose one of them"


def _together(given: Sequence[_Given]) -> Iterator[str]:
    seen: dict[tuple[Flag, str], _Given] = {}
    for one in given:
        first = seen.setdefault((one.flag, one.part), one)
        if first is one or one.flag.words == "*":
            continue
        other = f"spec.engine.args[{first.index}]" if first.index is not None else "another field of the spec"
        how = "contradicts" if _negated(first) != _negated(one) else "repeats"
        yield f"spec.engine.args[{one.index}]: {one.name} {how} {first.name} of {other}; keep one of the two"
    yield from _contradictions({flag.names[0]: one for (flag, part), one in seen.items() if not part})


def _negated(one: _Given) -> bool:
    return one.name.startswith("--no-")


# Of vLLM's SchedulerConfig (vllm/config/scheduler.py, verify_max_model_len): the first may not exceed the second.
_NOT_ABOVE: Final = (
    ("--max-num-seqs", "--max-num-batched-tokens"),
    ("--max-num-active-seqs", "--max-num-seqs"),
    ("--long-prefill-token-threshold", "--max-model-len"),
)


def _contradictions(by_name: Mapping[str, _Given]) -> Iterator[str]:
    """Pairs of numbers that vLLM's scheduler refuses."""
    numbers = {name: int(one.values[0]) for name, one in by_name.items() if one.values and one.values[0].isdigit()}
    for low, high in _NOT_ABOVE:
        if low in numbers and high in numbers and numbers[low] > numbers[high]:
            yield f"{_place(by_name[low], by_name[high])}: {low} is above {high}; lower the one or raise the other"
    batched, chunked = by_name.get("--max-num-batched-tokens"), by_name.get("--enable-chunked-prefill")
    if batched is None or chunked is None or not _negated(chunked):
        return
    if numbers.get("--max-num-batched-tokens", 0) < numbers.get("--max-model-len", 0):
        yield (
            f"{_place(batched)}: --max-num-batched-tokens is below spec.engine.maxModelLen, which works only with "
            "chunked prefill; raise it or take out spec.engine.chunkedPrefill"
        )


def _place(*given: _Given) -> str:
    """The first of these arguments that is the user's own; others come from fields."""
    return next(f"spec.engine.args[{one.index}]" for one in given if one.index is not None)
