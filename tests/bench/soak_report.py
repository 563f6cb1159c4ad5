"""What a soak has shown: its faults, its table, the slope of memory. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from .report import table

Results = Mapping[str, Any]
WARM_SHARE = 0.25  # of the requests; memory before it is not looked at
# Shorter soaks say nothing of memory: caches with a limit are still being filled.
LONG_REQUESTS = 200_000
# Growth over a whole soak that is still called flat, bytes: an allocator's arenas come and go in such steps.
FLAT_BYTES = 8 * 2**20


def faults(results: Results) -> list[str]:
    """What must not have happened; empty when the soak is good."""
    counts = results["counts"]
    found = [f"{number} requests: {what}" for what, number in counts["violations"].items()]
    if counts["still_running"]:
        found.append(f"{counts['still_running']} requests still run in engines although no client is left")
    for name, ledger in results["ledgers"].items():
        kept = {key: value for key, value in ledger.items() if value and key != "opened"}
        if kept:
            found.append(f"the ledger of {name} is not empty: {kept}")
    for move in results["moves"]:
        kept = {key: value for key, value in move["ledger"].items() if value and key != "opened"}
        if kept:
            found.append(f"a ledger was not empty after its drain: {kept}")
    for process in ("gateway", "sidecar") if results["load"]["requests"] >= LONG_REQUESTS else ():
        grown = growth_bytes(results["memory"], process, results["load"]["requests"])
        if grown is not None and grown > FLAT_BYTES:
            found.append(f"the {process}'s memory is not flat: {grown / 2**20:.1f} MiB more by the slope")
    return [*found, *counts["examples"][:5]]


def slope(samples: Sequence[Mapping[str, float]], process: str, requests: int) -> float | None:
    """Bytes a request, by least squares over the samples after the warm-up; None with too few of them."""
    warm = [(sample["done"], sample[process]) for sample in samples if sample["done"] >= WARM_SHARE * requests]
    if len(warm) < 5:
        return None
    middle = sum(done for done, _ in warm) / len(warm)
    mean = sum(memory for _, memory in warm) / len(warm)
    spread = sum((done - middle) ** 2 for done, _ in warm)
    return sum((done - middle) * (memory - mean) for done, memory in warm) / spread if spread else None


def growth_bytes(samples: Sequence[Mapping[str, float]], process: str, requests: int) -> float | None:
    """What the slope makes of the part of the soak that came after the warm-up."""
    steep = slope(samples, process, requests)
    return None if steep is None else steep * requests * (1 - WARM_SHARE)


def markdown(results: Results) -> str:
    """Counts of both sides, memory, ledgers."""
    counts, load = results["counts"], results["load"]
    rows = [[f"clients: {name.replace('_', ' ')}", f"{number:,}"] for name, number in counts["outcomes"].items()]
    rows += [[f"engines: {name.replace('_', ' ')}", f"{number:,}"] for name, number in counts["engines"].items()]
    moves = [move["how"] for move in results["moves"]]
    rows += [[f"pods: one {how}", str(moves.count(how))] for how in dict.fromkeys(moves)]
    for process in ("gateway", "sidecar"):
        steep = slope(results["memory"], process, load["requests"])
        last = results["memory"][-1][process] / 2**20 if results["memory"] else 0.0
        shown = "-" if steep is None else f"{steep * 100_000 / 1024:+.1f} KiB per 100,000 requests, {last:.0f} MiB"
        rows.append([f"{process}: slope of memory after the warm-up", shown])
    empty = all(not value for one in results["ledgers"].values() for key, value in one.items() if key != "opened")
    rows.append(["ledgers in the end", "all zero" if empty else str(results["ledgers"])])
    rate = load["requests"] / counts["seconds"]
    rows.append(["time", f"{counts['seconds']:,.0f} s, {rate:,.0f} requests/s"])
    verdict = "held" if not faults(results) else "MISSED: " + "; ".join(faults(results))
    rows.append(["none lost, none doubled, ledger at zero, memory flat", verdict])
    return table([f"{load['requests']:,} requests", ""], rows)


def page(results: Results) -> str:
    """The part of docs/benchmarks.md that tells of the soak."""
    load, facts = results["load"], results["machine"]
    return (
        "Clients through a gateway and three sidecars, each before an engine that answers as its request's\n"
        "number says: chats as streams and whole, bodies up to 200 kB. Both ends keep books, request by request\n"
        "(tests/bench/native/go/soak): every answer must be right byte for byte and be given by one engine once,\n"
        "and every error must be explained by an engine's reset or by a pod that was killed. Pods come and go\n"
        "all the time: they drain and leave, leave and drain, or are killed.\n\n"
        f"`make soak`: {load['disconnects']:.0%} of clients leave, {load['resets']:.0%} of attempts are reset by\n"
        f"the engine; {results['started']}, {facts['cpu']}, {facts['cores']} cores.\n\n" + markdown(results)
    )
