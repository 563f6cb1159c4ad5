"""The metrics page: every parser must take it, also with an engine's page behind it."""

import math
import re
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.metrics_page import append_page
from tidepool_router.fleet.sidecar_metrics import SidecarMetrics
from tidepool_router.ledger import Estimate, Ledger, Outcome
from tidepool_router.metrics import Registry

SAMPLE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*=\"(?:[^\"\\\n]|\\[\\n\"])*\",?)*)\})? (\S+)(?: \d+)?"
)
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"')
OK = (("outcome", "ok"),)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def parse(page: bytes) -> Samples:
    """As strict as the format is written: one block a family, types known, no series twice, sane histograms."""
    text = page.decode()
    assert text.endswith("\n")
    types: dict[str, str] = {}
    blocks: list[str] = []
    samples: Samples = {}
    for line in text.split("\n")[:-1]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} is typed twice"
            types[name] = kind
        elif line.startswith("# HELP "):
            assert line.split(" ")[2] not in blocks, line
        if line.startswith("# "):
            family = line.split(" ")[2]
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, f"no sample: {line!r}"
            stem = re.sub(r"_(bucket|sum|count)$", "", match[1])
            family = stem if types.get(stem) in ("histogram", "summary") else match[1]
            assert family in types, f"{family} has no type"
            labels = tuple((name, unescape(value)) for name, value in LABEL.findall(match[2] or ""))
            key = (match[1], tuple(sorted(labels)))
            assert key not in samples, f"{key} is there twice"
            samples[key] = float(match[3])
        if not blocks or blocks[-1] != family:
            assert family not in blocks, f"{family} stands in two blocks"
            blocks.append(family)
    check_histograms(samples, types)
    return samples


def check_histograms(samples: Samples, types: dict[str, str]) -> None:
    buckets: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = defaultdict(list)
    for (name, labels), value in samples.items():
        stem = name.removesuffix("_bucket")
        if name.endswith("_bucket") and types.get(stem) == "histogram":
            rest = tuple(pair for pair in labels if pair[0] != "le")
            buckets[stem, rest].append((float(dict(labels)["le"]), value))
    for (stem, rest), found in buckets.items():
        counts = [value for _, value in sorted(found)]
        assert counts == sorted(counts), f"{stem} is not cumulative"
        assert max(found)[0] == math.inf
        assert samples[f"{stem}_count", rest] == counts[-1]


def test_counters_gauges_and_histograms() -> None:
    registry = Registry()
    registry.counter("a_total", "A.", "code").labels("200").inc(2)
    registry.gauge("b", "B.").labels().set(0.25)
    histogram = registry.histogram("c_seconds", "C.", (0.1, 1.0), "pool").labels("x")
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)

    samples = parse(registry.render())

    assert samples["a_total", (("code", "200"),)] == 2
    assert samples["b", ()] == 0.25
    assert samples["c_seconds_bucket", (("le", "0.1"), ("pool", "x"))] == 2  # a bound belongs to its bucket
    assert samples["c_seconds_bucket", (("le", "1"), ("pool", "x"))] == 3
    assert samples["c_seconds_sum", (("pool", "x"),)] == pytest.approx(7.65)


@given(st.text(max_size=20))
def test_any_label_value_survives(value: str) -> None:
    registry = Registry()
    registry.counter("a_total", "A.", "pool").labels(value).inc()

    assert ("a_total", (("pool", value),)) in parse(registry.render())


def test_a_name_is_taken_once() -> None:
    registry = Registry()
    registry.counter("a_total", "A.")

    with pytest.raises(ValueError, match="a_total is there already"):
        registry.gauge("a_total", "A.")


def test_series_of_a_pool_that_is_gone_are_dropped() -> None:
    metrics = GatewayMetrics()
    for pool in ("ns/a", "ns/b"):
        metrics.pool(pool).ended[Outcome.OK].codes[200].inc()
        metrics.pool(pool).ended[Outcome.OK].queue.observe(1.0)
        metrics.held.labels(pool).set(1)
    metrics.forget("ns/a")

    page = metrics.registry.render()
    parse(page)

    assert b"ns/a" not in page
    assert b"ns/b" in page


def test_the_first_failure_of_a_pool_raises_a_series_that_was_there_before() -> None:
    metrics = GatewayMetrics()
    pool = metrics.pool("n/p")
    names = ("tidepool_gateway_retries_total", "tidepool_gateway_ejections_total")
    kinds = ("connect", "first_byte_timeout", "http_5xx", "reset")
    series = {(name, (("pool", "n/p"), ("reason", kind))) for name in names for kind in kinds}

    before = parse(metrics.registry.render())
    pool.retries["reset"].inc()
    after = parse(metrics.registry.render())

    assert {key for key, value in before.items() if value == 0} >= series
    assert sum(after[key] for key in series) == 1


def test_the_ledger_fills_the_sidecars_page() -> None:
    metrics = SidecarMetrics()
    ledger = Ledger(metrics)
    entry = ledger.open(Estimate(100, 50), 10.0)
    entry.progress(1, 10.5)
    entry.progress(11, 11.5)
    entry.usage(80, 11, 30)
    entry.code = 200
    entry.close(Outcome.OK, 12.0)
    metrics.unserved(503, Outcome.REFUSED)

    samples = parse(metrics.registry.render())

    assert samples["tidepool_requests_total", (("code", "200"), ("outcome", "ok"))] == 1
    assert samples["tidepool_requests_total", (("code", "503"), ("outcome", "refused"))] == 1
    assert samples["tidepool_prompt_tokens_total", ()] == 80
    assert samples["tidepool_cached_prompt_tokens_total", ()] == 30
    assert samples["tidepool_time_to_first_token_seconds_sum", ()] == pytest.approx(0.5)
    assert samples["tidepool_time_per_output_token_seconds_sum", OK] == pytest.approx(1.5 / 10)
    assert samples["tidepool_request_duration_seconds_sum", OK] == pytest.approx(2.0)
    assert samples["tidepool_prompt_token_estimate_error_ratio_sum", ()] == pytest.approx(0.25)
    assert samples["tidepool_output_token_estimate_error_ratio_sum", ()] == pytest.approx(39 / 11)
    assert samples["tidepool_cached_token_estimate_error_ratio_sum", ()] == pytest.approx(30 / 80)


def test_predicted_cached_tokens_are_not_counted_as_cached() -> None:
    metrics = SidecarMetrics()
    entry = Ledger(metrics).open(Estimate(100, 50, cached_tokens=64), 10.0)
    entry.usage(100, 11)  # the engine tells no cached tokens
    entry.code = 200
    entry.close(Outcome.OK, 12.0)

    samples = parse(metrics.registry.render())

    assert samples["tidepool_cached_prompt_tokens_total", ()] == 0
    assert samples["tidepool_cached_token_estimate_error_ratio_count", ()] == 0


ENGINE_PAGE = b"""# HELP python_info Python platform information
# TYPE python_info gauge
python_info{version="3.11.7"} 1.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0
# HELP vllm:e2e Histogram of e2e.
# TYPE vllm:e2e histogram
vllm:e2e_bucket{le="1.0"} 1.0
vllm:e2e_bucket{le="+Inf"} 1.0
vllm:e2e_count 1.0
vllm:e2e_sum 0.5
"""


def test_the_engines_page_follows_ours() -> None:
    metrics = SidecarMetrics()

    samples = parse(append_page(metrics.registry.render(), ENGINE_PAGE))

    assert samples["vllm:kv_cache_usage_perc", (("engine", "0"), ("model_name", "tiny"))] == 0.0
    assert samples["vllm:e2e_sum", ()] == 0.5
    assert ("tidepool_requests_running", ()) in samples


@given(st.binary(max_size=80))
def test_no_engines_page_breaks_ours(engine: bytes) -> None:
    own = b"# TYPE a gauge\na 1\n"

    assert append_page(own, engine).startswith(own)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (None, "the engine does not answer"),
        (b"", "an empty page"),
        (b"# TYPE a gauge\na 9\n# EOF\n", "a family that we have, and OpenMetrics' end mark"),
        (b'# HELP h H.\n# TYPE h histogram\nh_bucket{le="+Inf"} 0\nh_sum 0\nh_count 0\n', "a histogram we have"),
        (b"a 9\nh_sum 3\n", "samples of ours without a declaration"),
        (b"# TYPE a gauge\r\na 9\r\n", "other line ends"),
        (b"# a comment\n\n# TYPE a gauge\na 1", "comments, and no newline at the end"),
        (b"   \n\t\n", "lines of nothing"),
    ],
)
def test_what_an_engine_repeats_of_ours_is_left_out(engine: bytes | None, why: str) -> None:
    registry = Registry()
    registry.gauge("a", "A.").labels().set(1)
    registry.histogram("h", "H.", (1.0,)).labels().observe(0.5)
    own = registry.render()

    assert append_page(own, engine) == own, why
    parse(append_page(own, engine))
