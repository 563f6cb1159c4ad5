"""What sidecars tell of their engines' caches: gateways that did not send a prompt know where it is."""

from hypothesis import given
from hypothesis import strategies as st

from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet.engine_cache import EngineCache
from tidepool_router.ledger import PrefixIndex, TokenEstimator
from tidepool_router.ledger.chain import BORDERS
from tidepool_router.ledger.stored import StoredLog, read_stored


def facts(*prefix: int) -> RequestFacts:
    return RequestFacts(Api.CHAT, "", "", prompt_bytes=256 * len(prefix), prefix=prefix)


def told(cache: EngineCache, index: PrefixIndex, known: int = 0) -> int:
    index.stored(0, read_stored(cache.log.text, cache.log.total - known))
    return cache.log.total


def test_another_gateway_knows_a_prompt_from_the_report() -> None:
    cache, other = EngineCache(TokenEstimator()), PrefixIndex()
    slot = other.join()
    cache.took_in(*cache.look(facts(11, 12, 13))[1:])

    told(cache, other)

    assert dict(other.match((11, 12, 99))) == {slot: BORDERS[1]}


def test_a_beginning_that_is_used_again_stays_at_the_other_gateway_too() -> None:
    cache, other = EngineCache(TokenEstimator()), PrefixIndex()
    slot = other.join()
    other.resize(slot, 4 * BORDERS[0])
    cache.took_in(*cache.look(facts(11, 12))[1:])
    cache.took_in(*cache.look(facts(21))[1:])
    known = told(cache, other)

    cache.took_in(*cache.look(facts(11, 12))[1:])  # from the cache: nothing new but that it was used
    cache.took_in(*cache.look(facts(31, 32))[1:])
    told(cache, other, known)

    assert dict(other.match((11, 12))) == {slot: BORDERS[1]}
    assert not other.match((21,))


def test_a_prompt_that_goes_on_tells_its_new_blocks_and_the_last_one_that_was_there() -> None:
    cache = EngineCache(TokenEstimator())
    cache.took_in(*cache.look(facts(11, 12, 13))[1:])
    before = cache.log.total

    cache.took_in(*cache.look(facts(11, 12, 13, 14))[1:])

    # A report has room for 192 entries: a conversation must not fill it with what everybody knows.
    assert read_stored(cache.log.text, cache.log.total - before) == [(3, 14), (2, 13)]


def test_a_request_finds_cached_what_went_in_before() -> None:
    cache = EngineCache(TokenEstimator())
    assert cache.look(facts(1, 2, 3, 4))[0].cached_tokens == 0

    cache.took_in(*cache.look(facts(1, 2, 3, 4))[1:])

    # Two of four borders, 64 tokens each, and half of the way to the third.
    assert cache.look(facts(1, 2, 9, 9))[0].cached_tokens == 160


@given(st.lists(st.tuples(st.integers(0, len(BORDERS) - 1), st.integers(0, 2**32 - 1)), max_size=300))
def test_the_newest_entries_arrive_as_they_were(entries: list[tuple[int, int]]) -> None:
    log = StoredLog()
    for border, value in entries:
        log.add(border, value)

    assert log.total == len(entries)
    assert read_stored(log.text, 5) == entries[-5:]
    assert read_stored(log.text, 10_000) == entries[-192:]


@given(st.text(max_size=200), st.integers(-5, 300))
def test_no_text_makes_an_index_stumble(text: str, new: int) -> None:
    index = PrefixIndex()
    index.join()

    index.stored(0, read_stored(text, new))
