"""Load between reports: picks see each other, reports correct what was assumed."""

from hypothesis import given
from hypothesis import strategies as st

from tidepool_api.load import LoadReport
from tidepool_router.fleet.fusion import Dispatch, LoadFusion


def report(
    seq: int, *, tokens: int = 0, running: int = 0, opened: int = 0, closed: int = 0, boot: str = "a"
) -> LoadReport:
    return LoadReport(
        boot=boot, seq=seq, held_tokens=tokens, running=running, opened_total=opened, closed_total=closed
    )


def state(fusion: LoadFusion) -> tuple[int, int]:
    return fusion.tokens, fusion.requests


def test_two_picks_between_reports_see_each_other() -> None:
    fusion = LoadFusion()
    fusion.heard(report(1, tokens=1000, running=2, opened=2), 0.0)

    fusion.dispatched(300, 0.001)
    fusion.dispatched(50, 0.002)

    assert state(fusion) == (1350, 4)


def test_a_report_that_includes_a_dispatch_does_not_count_it_twice() -> None:
    fusion = LoadFusion()
    fusion.heard(report(1), 0.0)
    fusion.dispatched(300, 0.001)
    fusion.dispatched(50, 0.002)

    fusion.heard(report(2, tokens=300, running=1, opened=1), 0.003)  # the second is still on its way

    assert state(fusion) == (350, 2)


def test_what_no_report_tells_of_yet_is_known_until_one_does_or_it_ends() -> None:
    """Gateways that share a pod send alike: what one sent unseen is what the others may have sent unseen."""
    fusion = LoadFusion()
    fusion.heard(report(1), 0.0)
    first, second = fusion.dispatched(300, 0.001, 250), fusion.dispatched(50, 0.002, 40)
    fusion.reweigh(second, -10)
    assert fusion.unreported_tokens == 280

    fusion.ended(first, 300, 0.0025)
    assert fusion.unreported_tokens == 30

    fusion.heard(report(2, tokens=50, running=1, opened=2), 0.003)
    assert (fusion.unreported_tokens, second.known) == (0, True)


def test_an_ending_counts_at_once_and_only_once() -> None:
    fusion = LoadFusion()
    fusion.heard(report(1), 0.0)
    sent = fusion.dispatched(300, 0.001)
    fusion.heard(report(2, tokens=310, running=1, opened=1), 0.1)

    fusion.ended(sent, 310, 0.2)
    assert state(fusion) == (0, 0)

    fusion.heard(report(3, tokens=310, running=1, opened=1), 0.21)  # sent before the pod saw the end
    assert state(fusion) == (0, 0)

    fusion.heard(report(4, tokens=0, running=0, opened=1, closed=1), 0.25)
    assert state(fusion) == (0, 0)


def test_a_request_that_ends_before_any_report_had_it_leaves_nothing() -> None:
    fusion = LoadFusion()
    fusion.heard(report(1, tokens=70, running=1, opened=1), 0.0)
    fusion.ended(fusion.dispatched(300, 0.001), 300, 0.01)
    assert state(fusion) == (70, 1)

    other = fusion.dispatched(40, 0.02)
    # The counters have both moments of the first: the second must not be taken for it.
    fusion.heard(report(2, tokens=70, running=1, opened=2, closed=1), 0.03)
    assert state(fusion) == (110, 2)
    assert other.known is False


def test_a_dispatch_that_never_arrived_is_forgotten_after_a_second() -> None:
    fusion = LoadFusion()
    fusion.heard(report(1), 0.0)
    fusion.dispatched(300, 0.1)

    fusion.heard(report(2), 1.0)
    assert fusion.tokens == 300
    fusion.heard(report(3), 1.2)
    assert fusion.tokens == 0


def test_a_request_that_failed_to_connect_leaves_nothing_in_any_later_report() -> None:
    """The pod's counters never show it; dispatch and ending must not be forgotten at different times."""
    fusion = LoadFusion()
    fusion.heard(report(1), 0.0)
    failed = fusion.dispatched(300, 0.1)
    fusion.ended(failed, 300, 0.6)

    for seq, now in enumerate((0.7, 1.2, 1.7), start=2):
        fusion.heard(report(seq, tokens=1000, running=1), now)
        assert state(fusion) == (1000, 1)


def test_reports_out_of_order_are_dropped() -> None:
    fusion = LoadFusion()
    fusion.heard(report(5, tokens=10, running=1), 0.0)

    assert fusion.heard(report(4, tokens=99, running=9), 0.1) is False
    assert state(fusion) == (10, 1)


def test_a_pod_that_restarted_starts_from_its_own_report() -> None:
    fusion = LoadFusion()
    fusion.heard(report(500, tokens=9000, running=9, opened=100, closed=91), 0.0)
    fusion.dispatched(300, 0.5)
    fusion.dispatched(20, 0.99)

    fusion.heard(report(1, boot="b"), 1.0)

    assert state(fusion) == (20, 1)  # the youngest may be on its way to the new process


def test_memory_is_bounded_without_reports() -> None:
    fusion = LoadFusion()
    for number in range(50_000):
        fusion.ended(fusion.dispatched(1, number * 0.01), 1, number * 0.01)

    assert fusion.kept <= 2 * 8192
    assert state(fusion) == (0, 0)


@given(st.lists(st.sampled_from(["send", "end", "report", "reweigh"]), max_size=120), st.data())
def test_one_gateway_and_prompt_reports_give_the_exact_load(acts: list[str], data: st.DataObject) -> None:
    """With one gateway and nothing in flight between the two, fused load is the pod's own at every moment."""
    fusion = LoadFusion()
    live: dict[Dispatch, int] = {}
    opened = closed = seq = 0
    fusion.heard(report(0), 0.0)
    for step, act in enumerate(acts):
        now = step * 0.001
        if act == "send":
            weight = data.draw(st.integers(1, 500))
            live[fusion.dispatched(weight, now)] = weight
            opened += 1
        elif act == "end" and live:
            gone = data.draw(st.sampled_from(sorted(live, key=lambda d: d.at)))
            fusion.ended(gone, live.pop(gone), now)
            closed += 1
        elif act == "reweigh" and live:
            known = [dispatch for dispatch in live if not dispatch.known]
            for dispatch in known[:1]:  # the pod has not heard of it yet
                less = data.draw(st.integers(0, live[dispatch] - 1))
                fusion.reweigh(dispatch, -less)
                live[dispatch] -= less
        elif act == "report":
            seq += 1
            fusion.heard(
                report(seq, tokens=sum(live.values()), running=len(live), opened=opened, closed=closed), now
            )
        assert state(fusion) == (sum(live.values()), len(live))
