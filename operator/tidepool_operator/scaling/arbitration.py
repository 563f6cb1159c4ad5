"""Who gets accelerators when pools together want more than there are: shares of the cluster and of its quotas.

A pool's want is what its own decision asks for. Places are given one at a time, first to pools below their
minimum, then by priority, then where a replica wins most service level for each accelerator: with n of `want`
replicas the level is taken as 1 - (1 - n / want)^2, so that a pool with little gets more than one that is nearly
whole, and equal pools get equal shares. Where no place is free, one is taken from a pool above its minimum: from
one of lower priority, and among equals only where KEEP times as much is won as is lost. A replica that changed
hands is not won back by that rule, so the same wants end in the same shares.

Shares that need a pod of another pool to go are reached one replica a round from each pool. Pods that find no
place are left to wait: who adds nodes acts on them. Of those that get nothing the first in rank asks for one such
pod.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidepool_operator.pool.room import Room, Shape, Stock
from tidepool_operator.scaling.model import Refused

KEEP: Final = 1.5


@dataclass(frozen=True, slots=True)
class Claim:
    """One pool's want, or that of one of its variants (`key`: "namespace/name", or that and the variant's name).

    `current` replicas are asked for already, `pods` are the uids of its live pods. `device` and `devices` are the
    accelerator of a replica and how many it takes.
    """

    key: str
    namespace: str
    current: int
    want: int
    minimum: int
    priority: int
    shape: Shape
    pods: tuple[str, ...] = ()
    device: str = ""
    devices: int = 0


@dataclass(frozen=True, slots=True)
class Market:
    """What there is: the room, what quotas leave by (namespace, accelerator), and which quota that is."""

    room: Room
    quotas: Mapping[tuple[str, str], tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Share:
    """Replicas that a claim gets now, and what it was refused."""

    replicas: int
    refused: Refused | None = None


def contested(claims: Sequence[Claim], *, pending: bool) -> bool:
    """Whether the room has to be looked at: somebody wants more, or pods wait for a node."""
    return pending or any(claim.want > claim.current for claim in claims)


def shares(claims: Sequence[Claim], market: Market) -> dict[str, Share]:
    """What each claim gets, by key."""
    return _Round(claims, market).run()


@dataclass(slots=True)
class _Hand:
    """A claim while places are given: `held` replicas have a place or will, `waits` are asked for without one."""

    claim: Claim
    held: int
    waits: int = 0
    asks: int = 0  # asked for without a place, so that somebody sees the need
    got: bool = False
    lost: bool = False
    short_of: str = ""  # "quota" or "room"

    @property
    def place(self) -> tuple[str, str]:
        """Where quotas count it."""
        return self.claim.namespace, self.claim.device

    @property
    def replicas(self) -> int:
        """As the round leaves them: pods that wait go before one that serves."""
        if self.lost:
            return self.held
        return max(self.held + self.asks, min(self.claim.current, self.claim.want))

    def rank(self) -> tuple[bool, int, float, str]:
        """Who is first gets the next place; the name decides between equals."""
        claim = self.claim
        return (self.held >= claim.minimum, -claim.priority, -self.win(), claim.key)

    def win(self) -> float:
        """Service level of one replica more, for each accelerator."""
        return (self._level(self.held + 1) - self._level(self.held)) / max(1, self.claim.devices)

    def loss(self) -> float:
        """Service level of one replica fewer, for each accelerator."""
        return (self._level(self.held) - self._level(self.held - 1)) / max(1, self.claim.devices)

    def _level(self, count: int) -> float:
        share = min(1.0, count / self.claim.want) if self.claim.want else 1.0
        return 1.0 - (1.0 - share) ** 2


class _Round:
    def __init__(self, claims: Sequence[Claim], market: Market) -> None:
        self._stock = Stock(market.room)
        self._quotas = {place: left for place, (_, left) in market.quotas.items()}
        self._names = {place: name for place, (name, _) in market.quotas.items()}
        self._hands = [_Hand(claim, min(claim.current, claim.want)) for claim in claims]
        self._givers: dict[str, list[_Hand]] = {}

    def run(self) -> dict[str, Share]:
        self._settle()
        for hand in sorted(self._hands, key=lambda each: (each.claim.priority, each.loss(), each.claim.key)):
            if hand.held > hand.claim.minimum:
                self._givers.setdefault(hand.claim.device, []).append(hand)
        growing = [(hand.rank(), hand) for hand in self._hands if hand.held < hand.claim.want]
        heapq.heapify(growing)  # names differ, so hands are never compared
        while growing:
            _, hand = heapq.heappop(growing)
            if (self._given(hand) or self._taken(hand)) and hand.held < hand.claim.want:
                heapq.heappush(growing, (hand.rank(), hand))
        self._ask()
        return {hand.claim.key: Share(hand.replicas, self._refusal(hand)) for hand in self._hands}

    def _settle(self) -> None:
        """Places of pods that will go are free; then what was asked for before takes its own, by rank."""
        ours = {uid for hand in self._hands for uid in hand.claim.pods}
        for hand in self._hands:
            serving = [uid for uid in hand.claim.pods if self._stock.placed(uid)]
            for uid in serving[hand.held :]:
                self._stock.give_back(uid)
            if hand.place in self._quotas:  # pods that nobody has made yet count in no quota
                self._quotas[hand.place] -= max(0, hand.held - len(hand.claim.pods)) * hand.claim.devices
        for uid, shape in self._stock.waiting.items():
            if uid not in ours:
                self._stock.take(shape)
        for hand in sorted(self._hands, key=_Hand.rank):
            homeless = hand.held - sum(self._stock.placed(uid) for uid in hand.claim.pods)
            hand.waits = sum(not self._stock.take(hand.claim.shape) for _ in range(homeless))
            hand.held -= hand.waits

    def _given(self, hand: _Hand) -> bool:
        """A free place, within the quota."""
        if hand.lost:
            return False  # what was taken in this round stays taken
        if not self._allowed(hand):
            hand.short_of = "quota"
            return False
        hand.short_of = "room"
        if not self._stock.take(hand.claim.shape):
            return False
        self._won(hand)
        return True

    def _taken(self, hand: _Hand) -> bool:
        """The place of a pod of another pool, of the one that loses least by it."""
        if hand.lost:
            return False
        for other in self._givers.get(hand.claim.device, ()):
            if not self._less(other, hand):
                return False  # they stand in this order
            if (
                other is hand
                or other.lost
                or other.got
                or (hand.short_of == "quota" and other.place != hand.place)
            ):
                continue
            if any(self._stock.exchange(hand.claim.shape, uid) for uid in other.claim.pods):
                other.held -= 1
                other.lost = True
                if other.place in self._quotas:
                    self._quotas[other.place] += other.claim.devices
                self._won(hand)
                return True
        return False

    def _less(self, other: _Hand, hand: _Hand) -> bool:
        """Whether a place is worth less to `other`, which is above its minimum."""
        if hand.held < hand.claim.minimum or other.claim.priority < hand.claim.priority:
            return True
        return other.claim.priority == hand.claim.priority and hand.win() > KEEP * other.loss()

    def _won(self, hand: _Hand) -> None:
        hand.held += 1
        hand.got = True
        if hand.waits:
            hand.waits -= 1  # its pod waits already, and counts in the quota
        elif hand.place in self._quotas:
            self._quotas[hand.place] -= hand.claim.devices

    def _allowed(self, hand: _Hand) -> bool:
        return bool(hand.waits) or self._quotas.get(hand.place, hand.claim.devices) >= hand.claim.devices

    def _ask(self) -> None:
        """Where nobody's pod waits for a kind of accelerator, the first of those refused has one wait."""
        asking = {hand.claim.device for hand in self._hands if hand.waits and not hand.lost}
        for hand in sorted(self._hands, key=_Hand.rank):
            lacks = hand.short_of == "room" and not hand.lost and hand.held < hand.claim.want
            if lacks and hand.claim.device not in asking and self._allowed(hand):
                asking.add(hand.claim.device)
                hand.asks = 1

    def _refusal(self, hand: _Hand) -> Refused | None:
        claim, count = hand.claim, hand.claim.want - hand.held
        if count <= 0:
            return None
        what = f"{claim.devices} {claim.device}" if claim.device else "the room"
        if hand.short_of == "quota":
            words = (
                f"{count} of {claim.want} replicas are beyond ResourceQuota {self._names[hand.place]}; raise its "
                f"requests.{claim.device}, or lower maxReplicas of another pool of the namespace"
            )
            return Refused(count, "QuotaReached", words)
        above = sum(
            each.held
            for each in self._hands
            if each.claim.device == claim.device and each.claim.priority > claim.priority
        )
        held = f" ({above} replicas of pools of higher priority run)" if above else ""
        words = (
            f"{count} of {claim.want} replicas find no node with {what} free{held}; add nodes that this pool's "
            "nodeSelector and tolerations admit, or give it a scheduling.priorityClassName of a higher value"
        )
        return Refused(count, "AcceleratorsShort", words)
