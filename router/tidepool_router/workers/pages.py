"""The metrics pages of all workers as one: each series with the number of its worker. PURE."""

from collections.abc import Mapping
from typing import Final

_COMMENT: Final = b"# "


def merged(pages: Mapping[int, bytes]) -> bytes:
    """One page in Prometheus' text format; families stay together and are described once.

    The workers' series are told apart by the label `worker`, as those of gateways are by their pods: whoever adds
    up gateways adds up workers with them.
    """
    described: dict[bytes, list[bytes]] = {}
    series: dict[bytes, list[bytes]] = {}
    for worker, page in pages.items():
        label = b'worker="%d"' % worker
        family = b""
        for line in page.splitlines():
            if line.startswith(_COMMENT):
                family = line.split(b" ", 3)[2]
                known = described.setdefault(family, [])
                if line not in known:
                    known.append(line)
            elif line:
                series.setdefault(family, []).append(_labelled(line, label))
    out: list[bytes] = []
    for family in described | series:
        out += (*described.get(family, ()), *series.get(family, ()))
    return b"\n".join(out) + b"\n" if out else b""


def _labelled(line: bytes, label: bytes) -> bytes:
    """A series with one more label, before the others."""
    brace, space = line.find(b"{"), line.find(b" ")
    if 0 <= brace < space or (brace >= 0 and space < 0):
        rest = line[brace + 1 :]
        return line[: brace + 1] + label + (b"" if rest.startswith(b"}") else b",") + rest
    return line[:space] + b"{" + label + b"}" + line[space:]
