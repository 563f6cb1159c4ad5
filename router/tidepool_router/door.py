"""Who may do what on a gateway's control port: orders and reports are the operator's. PURE: the time is given.

Probes and the drain are open to whoever reaches the port: the kubelet asks for them, and it can prove nothing.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from tidepool_api import contract
from tidepool_api.trust import TrustedCallers
from tidepool_router.proofs import Callers, Fault, Part, Proof

_ORDERS: Final = frozenset({("PUT", contract.PATH_FLEET)})
_REPORTS: Final = frozenset({contract.PATH_LOAD, contract.PATH_LOAD_STREAM})


class Writer(StrEnum):
    """From whom a gateway takes its fleet, beside its own file."""

    NOBODY = "nobody"
    OPERATOR = "operator"  # by its proof
    EVERYBODY = "everybody"  # who reaches the control port


class Door:
    """What the control port asks for before it answers; `tell` hears of each token that had to be checked."""

    def __init__(self, writer: Writer, tell: Callable[[Proof | Fault], None] = lambda _: None) -> None:
        self.writer = writer
        self._tell = tell
        self._callers = Callers(TrustedCallers(), tell)

    def believe(self, trusted: TrustedCallers) -> None:
        """Whose proofs count from now on, from a source that is trusted itself."""
        if trusted != self._callers.trusted:
            self._callers = Callers(trusted, self._tell)

    def refusal(self, method: str, path: str, proof: str | None, now: float) -> tuple[int, str] | None:
        """Status and reason for whoever may not; None: let them in. `now` in Unix seconds."""
        order = (method, path) in _ORDERS or path.startswith(contract.PATH_RUNS)
        if order and self.writer is Writer.NOBODY:
            return 404, f"there is no {path} here: this gateway's fleet comes from its file alone"
        if self.writer is not Writer.OPERATOR or not (order or path in _REPORTS):
            return None
        callers = self._callers
        if not callers.can_prove:
            # An operator of the release before tells no keys, and shows no proof to those that it asks for demand.
            why = "the cluster's keys are not known here yet; the operator writes them beside the fleet"
            return (403, why) if order else None
        token = None if proof is None else proof.encode("latin-1", "replace")
        if callers.part_of(token, now) is Part.OPERATOR:
            return None
        return 403, f"{path} is for the operator, who shows its proof in {contract.HEADER_PROOF}"
