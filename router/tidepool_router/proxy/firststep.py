"""The first of a request's two steps, in pools that compute prompts apart: a prefill pod computes the prompt and
keeps its KV blocks for the decode pod, on which the request has its place meanwhile.

Whatever goes wrong here costs the client nothing but time: the decode pod can compute any prompt.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

import msgspec

from tidepool_router.errors import Refusal, UpstreamError
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.pool import PoolState
from tidepool_router.fleet.reservation import Reservation
from tidepool_router.ledger import Outcome
from tidepool_router.picking.apart import why_whole
from tidepool_router.proxy.aside import Aside
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.upstream import UpstreamConnection
from tidepool_router.wire.answers import AnswerReader
from tidepool_router.wire.coding import opened
from tidepool_router.wire.headers import COLON, CRLF, LOAD, TRANSFERRED
from tidepool_router.wire.messages import Request
from tidepool_router.wire.transfer import first_step, names_transfer, second_step, told_by, whole_again
from tidepool_router.wire.usage import of_answer

# vLLM's prefill engine keeps blocks for 30 s that nobody has asked for (kv_lease_duration, NIXL connector); the
# decode engine prolongs that as soon as it has the request. What is older than this is not worth the race.
_FRESH_SECONDS: Final = 20.0
# Ids of a prompt's blocks: 128,000 tokens in blocks of 16 are some 60 kB.
_LONGEST_ANSWER_BYTES: Final = 1 << 20
_FAULTS: Final = frozenset((500, 502, 503, 504))

Done = Callable[[str, UpstreamError | None], None]


def claims_blocks(request: Request) -> Refusal | None:
    """The refusal of a client's request that says itself where KV blocks are: they might be anybody's."""
    body = request.body
    coding = request.special.get(b"content-encoding")
    try:
        if not names_transfer(body if coding is None else opened(body, coding)):
            return None
    except ValueError:
        return None  # no JSON object: the engine says so in its own words
    message = "kv_transfer_params is the router's to set, between a pool's own pods; leave it out"
    return Refusal(400, "invalid_request_error", "reserved_field", message)


class FirstStep(Aside):
    """One request's. What `start` began ends by exactly one `_end`."""

    __slots__ = (
        "_decode", "_done", "_facts", "_place", "_pool", "_request", "_request_id", "_side", "_told_at",
        "began_at",
    )  # fmt: skip

    def __init__(
        self, services: Services, pool: PoolState, request: Request, request_id: bytes, facts: RequestFacts
    ) -> None:
        super().__init__(services)
        self._pool = pool
        self._request = request
        self._request_id = request_id
        self._facts = facts
        self._told_at: float | None = None  # when the blocks were ready, while the request says where they are
        self.began_at = 0.0

    def start(self, decode: Reservation, done: Done) -> bool:
        """Whether there is a first step; then `done` is called when it is over, unless `cancel` was before.

        It is told the key of the pod, and its error where it failed, but nothing where the pod refused: the decode
        pod will take the request, or say for itself what is wrong with it.
        """
        pool, side = self._pool, self._pool.prefill
        prefill, entry = pool.config.prefill, decode.entry
        if side is None or prefill is None:
            return False
        why = why_whole(entry.uncached_tokens, entry.cached_tokens, prefill.min_tokens)
        body = self._first_body() if why is None else None
        if body is None:
            pool.metrics.prefills[why or "unfit"].inc()
            return False
        now = monotonic()
        place = side.pick(msgspec.structs.replace(self._facts, max_tokens=1, choices=1, stream=True), now)
        if place is None:
            pool.metrics.prefills["no_pod"].inc()
            return False
        self.began_at = now
        self._side, self._place, self._decode, self._done = side, place, decode, done
        side.first_steps += 1
        decode.moved(entry.uncached_tokens - 1, now)
        self._body = body
        self._services.bodies_bytes += len(body)
        self._send_to(place, self._request, self._request_id, self._services.first_byte_seconds)
        return True

    def moved_to(self, decode: Reservation) -> None:
        """The request goes to another decode pod, with what the first step found out as long as that holds."""
        now = monotonic()
        if self._told_at is None:
            return
        if now - self._told_at > _FRESH_SECONDS:
            self.spent()
        else:
            decode.moved(decode.entry.uncached_tokens - 1, now)

    def spent(self) -> None:
        """The blocks may be gone: whoever gets the request next computes its prompt."""
        if self._told_at is None:
            return
        self._told_at = None
        request = self._request
        request.body = whole_again(request.body)
        request.rewrite((TRANSFERRED,), [])

    def check(self) -> None:
        """Whoever waits on a pod that is gone or hung need not wait for the timeout."""
        if self._open and self._place.stranded:
            self._fail(UpstreamError("first_byte_timeout", "the prefill pod is gone or its engine hangs"))

    def cancel(self) -> None:
        """The request is over; safe to call at any time."""
        if self._open:
            self._end("cancelled", Outcome.CANCELLED)

    # Towards the prefill pod.

    def _first_body(self) -> bytes | None:
        request = self._request
        if b"content-encoding" in request.special or self._facts.max_tokens == 0:
            return None
        try:
            return first_step(self._facts.api, request.body)
        except ValueError:
            return None

    def upstream_data(self, upstream: UpstreamConnection) -> None:
        """AnswerSink."""
        answer = upstream.answer
        if not answer.head_ready:
            return
        if answer.parts:
            if answer.status == 200:
                self._place.entry.first_token(monotonic())
            if sum(map(len, answer.parts)) > _LONGEST_ANSWER_BYTES:
                self._fail(UpstreamError("reset", "the prefill pod's answer is longer than one token's can be"))
                return
        if answer.complete:
            self._upstream = None
            parts, answer.parts = answer.parts, []
            upstream.release()
            self._answered(answer, b"".join(parts))

    # Ends.

    def _answered(self, answer: AnswerReader, body: bytes) -> None:
        place, status = self._place, answer.status
        load = answer.special.get(LOAD)
        if load is not None:
            place.heard(load.decode("latin-1"))
        place.entry.code = status
        if status in _FAULTS:
            self._fail(UpstreamError("http_5xx", f"the prefill pod answered {status}"))
            return
        told = told_by(body) if status == 200 else None
        usage = of_answer(body) if status == 200 else None
        if usage is not None:
            place.entry.usage(usage.prompt_tokens, usage.output_tokens, usage.cached_tokens)
            self._side.estimator.learn(self._facts, usage.prompt_tokens, 0)
        if told is None:
            self._end("refused" if status != 200 else "unanswered", Outcome.ERROR)
        else:
            self._tell(told)
        self._done(place.endpoint.key, None)

    def _tell(self, told: bytes) -> None:
        now = monotonic()
        request, entry = self._request, self._decode.entry
        moved_tokens = b"%d" % entry.moved_tokens
        request.body = second_step(request.body, told)
        request.rewrite((TRANSFERRED,), [TRANSFERRED, COLON, moved_tokens, CRLF])
        self._told_at = now
        self._end("ok", Outcome.OK)

    def _fail(self, error: UpstreamError) -> None:
        if not self._open:
            return
        place = self._place
        place.failed(error.kind)
        self._end("failed", Outcome.ERROR)
        self._done(place.endpoint.key, error)

    def _expire(self) -> None:
        limit = self._services.first_byte_seconds
        self._fail(UpstreamError("first_byte_timeout", f"the prefill pod did not answer within {limit:g} s"))

    def _end(self, outcome: str, ledger_outcome: Outcome) -> None:
        now = monotonic()
        self._services.bodies_bytes -= len(self._body)
        self._let_go()
        self._side.first_steps -= 1
        metrics = self._pool.metrics
        metrics.prefills[outcome].inc()
        metrics.prefill_seconds[ledger_outcome].observe(now - self.began_at)
        self._place.close(ledger_outcome, now)
        if ledger_outcome is not Outcome.CANCELLED:
            self._decode.moved(self._decode.entry.moved_tokens if self._told_at is not None else 0, now)
