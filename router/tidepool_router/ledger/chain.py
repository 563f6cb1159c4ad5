"""Hashes of a prompt's beginnings, so that prompts that begin alike are known without being kept.

The text is the prompt's JSON as the client wrote it, without the spaces between its parts. A border is a place in
it, the same for every text; the hash at a border covers all bytes before. Two prompts have the same hash at a
border when they are equal up to there, so the last common one says how much of them is shared.
"""

import re
from typing import Any, Final
from zlib import crc32

import msgspec

Text = bytes | memoryview | msgspec.Raw

# 64 tokens of 4 bytes: four blocks of vLLM's default size. Finer ones cost more than the matches gain (llm-d
# clamps to the same).
FIRST_BORDER_BYTES: Final = 256
# Borders in each doubling of the text: a match is short by a sixteenth at most, and long texts have few borders.
_BORDERS_AN_OCTAVE: Final = 16
# 131,072 tokens of 4 bytes, as llm-d caps it; what comes after is taken as not cached.
LONGEST_BYTES: Final = 524_288
# Of a text that is longer than this the rest is not looked at, spaces or not.
_LONGEST_SPACED_BYTES: Final = LONGEST_BYTES + LONGEST_BYTES // 8
# What is no space outside of strings; a string may go on behind the end.
_KEPT: Final = re.compile(rb'[^" \t\r\n]+|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)


def _borders() -> tuple[int, ...]:
    borders = [FIRST_BORDER_BYTES]
    while borders[-1] < LONGEST_BYTES:
        last = borders[-1]
        octave = 1 << (last.bit_length() - 1)
        borders.append(last + max(FIRST_BORDER_BYTES, octave // _BORDERS_AN_OCTAVE))
    return tuple(borders)


BORDERS: Final = _borders()


def chain(text: Text, seed: int = 0) -> tuple[int, ...]:
    """Hash at each border (BORDERS, in bytes) that the text reaches.

    CRC-32 goes on from where it was, so each byte is read once (4 GB/s), and it is the same in every process. Two
    texts that differ have the same hash once in 4e9; a match needs every border before it too, and a false one
    costs a pick that is not the best. `seed` keeps texts apart that share no cache, such as those with different
    salts.
    """
    view = memoryview(text)
    size = len(view)
    hashes = []
    start, value = 0, seed
    for end in BORDERS:
        if end > size:
            break
        value = crc32(view[start:end], value)
        hashes.append(value)
        start = end
    return tuple(hashes)


def canonical(text: Text) -> Text:
    """JSON without the spaces between its parts: one client writes all its requests alike, two may not.

    Of a long text only what the chain looks at, so that a large one takes no longer. Half a text will do.
    """
    view = memoryview(text)
    if len(view) <= _LONGEST_SPACED_BYTES:
        spaced: Any = text  # msgspec reads every buffer, and says so of bytes alone
        try:
            return bytes(msgspec.json.format(spaced, indent=-1))
        except msgspec.DecodeError:
            pass
    return b"".join(_KEPT.findall(view[:_LONGEST_SPACED_BYTES]))


def seed_of(*extras: str) -> int:
    """Seed of what an engine puts beside the text: the name of an adapter, a cache salt."""
    return crc32("\0".join(extras).encode("utf-8", "surrogatepass"), len(extras))


def with_adapter(hashes: tuple[int, ...], adapter: str) -> tuple[int, ...]:
    """The chain of the same text under a LoRA adapter, whose cache is its own."""
    mask = seed_of(adapter)
    return tuple([value ^ mask for value in hashes])
