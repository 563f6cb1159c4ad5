"""The pages of several workers as one that Prometheus reads."""

from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.metrics import Registry
from tidepool_router.workers.pages import merged


def page(requests: int, pool: str = "a") -> bytes:
    registry = Registry()
    registry.counter("requests_total", "Requests.", "pool").labels(pool).inc(requests)
    registry.gauge("held", "Held.").labels().set(requests)
    registry.histogram("seconds", "Time.", (1.0,), "pool").labels(pool).observe(0.5)
    return registry.render()


def test_families_stay_together_and_each_series_says_its_worker() -> None:
    assert (
        merged({0: page(2), 3: page(5)}).decode()
        == """\
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{worker="0",pool="a"} 2
requests_total{worker="3",pool="a"} 5
# HELP held Held.
# TYPE held gauge
held{worker="0"} 2
held{worker="3"} 5
# HELP seconds Time.
# TYPE seconds histogram
seconds_bucket{worker="0",pool="a",le="1"} 1
seconds_bucket{worker="0",pool="a",le="+Inf"} 1
seconds_sum{worker="0",pool="a"} 0.5
seconds_count{worker="0",pool="a"} 1
seconds_bucket{worker="3",pool="a",le="1"} 1
seconds_bucket{worker="3",pool="a",le="+Inf"} 1
seconds_sum{worker="3",pool="a"} 0.5
seconds_count{worker="3",pool="a"} 1
"""
    )


@given(st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=20))
def test_whatever_a_label_says_the_series_is_only_extended(pool: str) -> None:
    alone = page(1, pool).decode().split("\n")
    together = merged({7: page(1, pool)}).decode().split("\n")

    unlabelled = [line.replace('{worker="7",', "{", 1).replace('{worker="7"}', "", 1) for line in together]
    assert unlabelled == alone


def test_no_worker_no_page() -> None:
    assert merged({}) == b""
