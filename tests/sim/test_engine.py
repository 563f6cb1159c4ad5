"""The engine of the simulator does what vLLM's scheduler and its block pool do."""

import heapq
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.blocks import BlockPool
from sim.engine import NEVER, Engine, EngineConfig, Sequence
from sim.steptime import StepTime, llama_8b_on_two_a100

SECOND_A_STEP = StepTime(1.0, 0.0, 0.0, 0.0)
REAL = StepTime(0.008, 0.0002, 7e-8, 4e-5, 6e-9)


def config(**changes: object) -> EngineConfig:
    base: dict[str, object] = {"step_time": SECOND_A_STEP, "kv_tokens": 64 * 16, "block_tokens": 16}
    base |= {"max_batched_tokens": 64, "max_num_seqs": 8}
    return EngineConfig(**(base | changes))  # type: ignore[arg-type]


def drive(engine: Engine, arrivals: Iterable[tuple[float, Sequence]]) -> tuple[dict[str, float], dict[str, float]]:
    """Run to the end: when each request (by its name) had its first token, and when it was done."""
    todo = [(at, index, sequence) for index, (at, sequence) in enumerate(arrivals)]
    heapq.heapify(todo)
    first: dict[str, float] = {}
    done: dict[str, float] = {}
    while todo or engine.wake_at < NEVER:
        if todo and todo[0][0] <= engine.wake_at:
            now, _, sequence = heapq.heappop(todo)
            engine.submit(sequence, now)
            if engine.idle:
                engine.begin(now)
            continue
        now = engine.wake_at
        begun, ended = engine.complete()
        first |= {str(s.request): now for s in begun}
        done |= {str(s.request): now for s in ended}
        engine.begin(now)
    return first, done


def sequence(name: str, prompt: int, out: int, names: list[int] | None = None, priority: int = 0) -> Sequence:
    return Sequence(name, prompt, out, names or [], priority=priority)


def test_a_lone_request_takes_a_step_a_token() -> None:
    first, done = drive(Engine(config()), [(0.0, sequence("a", 60, 5))])
    assert first == {"a": 1.0}
    assert done == {"a": 5.0}


def test_a_long_prompt_is_computed_in_chunks_of_what_a_step_may_hold() -> None:
    first, _ = drive(Engine(config()), [(0.0, sequence("a", 130, 1))])
    assert first == {"a": 3.0}  # 64 + 64 + 2


def test_decoding_requests_go_before_prompts_in_a_step() -> None:
    # b's 126 tokens would be two steps alone; a's token in each takes one of the 64 places.
    first, _ = drive(Engine(config()), [(0.0, sequence("a", 10, 50)), (1.5, sequence("b", 127, 1))])
    assert first["b"] == 2.0 + 3.0


def test_a_prompt_that_arrives_during_a_step_waits_for_its_end() -> None:
    first, _ = drive(Engine(config()), [(0.0, sequence("a", 10, 50)), (10.25, sequence("b", 10, 1))])
    assert first["b"] == 12.0


def test_prompts_begin_in_the_order_of_their_arrival() -> None:
    arrivals = [(0.0, sequence(str(i), 64, 3)) for i in range(6)]
    first, _ = drive(Engine(config()), arrivals)
    assert sorted(first, key=lambda name: first[name]) == [str(i) for i in range(6)]


def test_with_priorities_the_lower_number_begins_first() -> None:
    arrivals = [
        (0.0, sequence("now", 64, 1)),
        (0.1, sequence("later", 64, 1, priority=5)),
        (0.2, sequence("sooner", 64, 1, priority=-1)),
    ]
    first, _ = drive(Engine(config(by_priority=True)), arrivals)
    assert first["sooner"] < first["later"]


def test_no_more_than_max_num_seqs_run() -> None:
    engine = Engine(config(max_num_seqs=2))
    first, done = drive(engine, [(0.0, sequence(name, 10, 4)) for name in "abc"])
    assert first["c"] == done["a"] + 1.0


def test_a_prompt_begins_only_when_all_of_it_fits() -> None:
    # 64 blocks: a holds 40; b needs 30 and must wait for a's end, though its first chunk would fit.
    engine = Engine(config())
    first, done = drive(engine, [(0.0, sequence("a", 640, 8)), (1.0, sequence("b", 480, 1))])
    assert first["b"] > done["a"]
    assert engine.counts.preemptions == 0


def test_when_blocks_run_out_the_youngest_is_preempted_and_computed_again() -> None:
    engine = Engine(config(kv_tokens=10 * 16))
    old, young = sequence("old", 60, 40), sequence("young", 60, 40)
    _, done = drive(engine, [(0.0, old), (0.0, young)])
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert done["old"] < done["young"]
    # Ten blocks hold 160 tokens. Both have four and take their fifth at 64 tokens, the one after it at 80.
    assert engine.counts.preemptions == 1
    # Prompt and output so far: computed twice, made once.
    assert engine.counts.prompt_tokens > 120
    assert engine.counts.output_tokens == 80
    assert engine.pool.used == 0


def test_with_priorities_the_least_urgent_is_preempted() -> None:
    engine = Engine(config(kv_tokens=10 * 16, by_priority=True))
    old, young = sequence("old", 60, 40, priority=9), sequence("young", 60, 40, priority=1)
    drive(engine, [(0.0, old), (0.0, young)])
    assert (old.preemptions, young.preemptions) == (1, 0)


def test_a_prefix_that_was_computed_is_not_computed_again() -> None:
    engine = Engine(config())
    names = [1, 2, 3, 4]
    again = sequence("b", 64, 1, names)
    drive(engine, [(0.0, sequence("a", 64, 1, names)), (5.0, again)])
    # The last block is computed again, for the last token must be, and blocks are all or nothing.
    assert again.cached_tokens == 48
    assert engine.counts.prefix_hits == 48
    assert engine.counts.prefix_queries == 128


def test_a_longer_prompt_finds_the_shorter_one_whole() -> None:
    engine = Engine(config())
    longer = sequence("b", 100, 1, [1, 2, 3, 4, 5, 6])
    drive(engine, [(0.0, sequence("a", 64, 1, [1, 2, 3, 4])), (5.0, longer)])
    assert longer.cached_tokens == 64


def test_a_prefix_is_found_while_its_first_request_is_still_running() -> None:
    engine = Engine(config())
    second = sequence("b", 70, 1, [1, 2, 3, 4])
    drive(engine, [(0.0, sequence("a", 70, 30, [1, 2, 3, 4])), (5.0, second)])
    assert second.cached_tokens == 64


def test_blocks_out_of_use_for_longest_are_evicted_first_and_of_one_prompt_the_last_ones() -> None:
    engine = Engine(config(kv_tokens=12 * 16))
    drive(
        engine,
        [
            (0.0, sequence("old", 64, 1, [1, 2, 3, 4])),
            (10.0, sequence("new", 64, 1, [11, 12, 13, 14])),
            (20.0, sequence("big", 96, 1)),  # 6 of 12 blocks: 4 are blank, so two of `old` must go
        ],
    )
    assert engine.pool.match([1, 2, 3, 4], 4) == 2
    assert engine.pool.match([11, 12, 13, 14], 4) == 4


def test_a_request_that_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than the KV cache"):
        Engine(config()).submit(sequence("a", 1000, 100), 0.0)


def test_more_blocks_than_there_are_cannot_be_had() -> None:
    with pytest.raises(ValueError, match="3 free"):
        BlockPool(3).take(4)


class Plodder(Engine):
    """Takes every step by itself."""

    def _leap_steps(self) -> int:
        super()._leap_steps()
        return 1


def load(seed: int) -> list[tuple[float, Sequence]]:
    dice = random.Random(seed)
    arrivals = []
    for index in range(40):
        prompt = dice.randrange(1, 300)
        group = dice.randrange(4)
        names = [group * 1000 + block for block in range(prompt // 16)]
        at = round(dice.random() * 4.0, 6)
        arrivals.append((at, sequence(str(index), prompt, dice.randrange(1, 120), names, dice.randrange(3))))
    return arrivals


@given(seed=st.integers(0, 10_000), blocks=st.integers(28, 200), by_priority=st.booleans())
def test_leaps_change_nothing(seed: int, blocks: int, by_priority: bool) -> None:
    settings_ = config(step_time=REAL, kv_tokens=blocks * 16, by_priority=by_priority)
    leaping, plodding = Engine(settings_), Plodder(settings_)
    first, done = drive(leaping, load(seed))
    first_plodding, done_plodding = drive(plodding, load(seed))
    assert first == pytest.approx(first_plodding)
    assert done == pytest.approx(done_plodding)
    assert leaping.counts == plodding.counts


@given(seed=st.integers(0, 10_000), blocks=st.integers(28, 120))
def test_every_block_comes_back_and_every_token_is_made_once(seed: int, blocks: int) -> None:
    engine = Engine(config(step_time=REAL, kv_tokens=blocks * 16))
    arrivals = load(seed)
    first, done = drive(engine, arrivals)
    assert len(first) == len(done) == len(arrivals)
    assert engine.pool.used == 0
    assert engine.counts.output_tokens == sum(s.to_make for _, s in arrivals)
    assert all(s.output_tokens == s.to_make for _, s in arrivals)
    assert engine.running == []
    assert engine.waiting == 0


def test_tokens_show_as_they_are_made_also_within_a_leap() -> None:
    engine = Engine(config())
    one = sequence("a", 10, 100)
    engine.submit(one, 0.0)
    engine.begin(0.0)
    engine.complete()
    engine.begin(1.0)
    assert engine.wake_at == 100.0
    assert engine.produced(one, 50.5) == 50


def test_the_fit_meets_the_measurements_of_the_table_of_two_thousand_tokens_and_more_within_15_percent() -> None:
    time = llama_8b_on_two_a100()
    # Medians of five repeats, from the table: one stream and a batch of 32, 512 tokens before; prompts alone.
    assert time.decode(1, 576) == pytest.approx(1.0837 / 128, rel=0.05)
    assert time.decode(32, 32 * 576) == pytest.approx(2.0550 / 128, rel=0.05)
    for prompt, seconds in ((512, 0.0285), (1024, 0.0544), (2048, 0.1305), (4096, 0.2342), (8192, 0.5422)):
        assert time.base_seconds + time.prefill(prompt, 0) == pytest.approx(
            seconds, rel=0.35 if prompt < 2048 else 0.15
        )
