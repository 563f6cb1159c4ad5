"""What is written down is what was counted, whatever fails in between."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_router.usage.tally import OTHERS, Hours, Tally, Used, Who

WHO = [Who("k1", "a", "tiny"), Who("k2", "a", "tiny"), Who("", "b", "big", "flow")]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ended"), st.integers(0, 2), st.booleans()),
        st.sampled_from([("written",), ("lost answer",), ("refused",), ("hour",), ("restart",)]),
    ),
    max_size=40,
)


@examples(60)
@given(STEPS)
def test_rows_add_up_to_what_ended_through_retries_hours_and_restarts(  # noqa: C901 - a world in small
    steps: list[tuple[object, ...]],
) -> None:
    rows: dict[tuple[int, int, Who], Used] = {}  # as a database keeps them: by hour, writer and who
    ended: Counter[Who] = Counter()
    hour, writer = 0, 0
    tally = Tally()
    hours = Hours(tally)

    def write(*, answered: bool, stored: bool) -> None:
        turned = None if hours.hour == hour else dict(tally)
        changed = tally.take_changed()
        if stored:
            rows.update({(hours.hour, writer, who): hours.row(who) for who in changed})
        if not answered:
            tally.give_back(changed)
        elif turned is not None:
            hours.turn(hour, turned)

    for step, *more in steps:
        if step == "ended":
            who = WHO[int(str(more[0]))]
            ended[who] += 1
            tally.ended(who, whole=bool(more[1]), prompt_tokens=7, cached_tokens=2, output_tokens=3)
        elif step == "hour":
            hour += 3600
        elif step == "restart":
            write(answered=True, stored=True)  # as a gateway that is told to end does
            writer += 1
            tally = Tally()
            hours = Hours(tally)
            hours.turn(hour, {})
        else:
            write(answered=step == "written", stored=step != "refused")
    write(answered=True, stored=True)

    sums = {who: Used() for who in WHO}
    for (_, _, who), used in rows.items():
        sums[who] = sums[who].plus(used)
    for who, used in sums.items():
        assert used._replace(failed=0) == Used(ended[who], 0, 7 * ended[who], 2 * ended[who], 3 * ended[who])


def test_who_names_a_new_tenant_each_time_fills_no_memory() -> None:
    tally = Tally(most_lines=2)
    for number in range(10):
        tally.ended(Who("", f"t{number}", "m"), whole=True, prompt_tokens=1, cached_tokens=0, output_tokens=1)

    assert len(list(tally)) == 3
    assert tally.used(OTHERS).requests == 8
    assert sum(used.requests for _, used in tally) == 10
