"""What gateways are told of the fleet, and how often."""

from typing import Any

from tidepool_api.routing import Fleet, FleetPool, FleetWorkflow
from tidepool_api.trust import PublicKey, TrustedCallers, subject_of
from tidepool_operator.cluster.gateways import Control, Publisher
from tidepool_operator.errors import NotFound


class Written:
    """An API that keeps the last ConfigMap."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    async def get(self, *_: object, **__: object) -> Any:
        if not self.items:
            raise NotFound("no such ConfigMap")
        return self.items[-1]

    async def apply(self, item: Any) -> None:
        self.items.append(item)


async def test_a_change_of_the_gateways_number_is_told_and_nothing_else_that_stays() -> None:
    """Each gateway takes its part of a key's limits."""
    api = Written()
    gateways: dict[str, str] = {}
    pools = (FleetPool(name="default/llama", models=("llama",)),)
    publisher = Publisher(api, "tidepool", lambda: pools, lambda: gateways, dict)  # type: ignore[arg-type]
    first = await publisher.publish()
    again = await publisher.publish()
    gateways.update({"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"})
    grown = await publisher.publish()

    assert (first.gateways, grown.gateways) == (1, 3)
    assert again is first
    assert grown.issued_at is not None
    assert first.issued_at is not None
    assert grown.issued_at > first.issued_at
    assert len(api.items) == 2
    assert Fleet.model_validate_json(api.items[-1]["data"]["fleet.json"]).gateways == 3


async def test_workflows_are_told_with_the_pools_and_again_when_they_change() -> None:
    api = Written()
    workflows = [FleetWorkflow(name="default/research", spec={"steps": [{"name": "a"}]})]
    publisher = Publisher(
        api,  # type: ignore[arg-type]
        "tidepool",
        tuple,
        dict,
        dict,
        workflows=lambda: tuple(workflows),
    )
    await publisher.publish()
    await publisher.publish()
    workflows.append(FleetWorkflow(name="default/digest", spec={"steps": []}))
    await publisher.publish()

    told = [Fleet.model_validate_json(item["data"]["fleet.json"]).workflows for item in api.items]
    assert told == [tuple(workflows[:1]), tuple(workflows)]


def believing(*kids: str) -> TrustedCallers:
    keys = tuple(PublicKey(kty="RSA", kid=kid) for kid in kids)
    return TrustedCallers(issuer="https://cluster", keys=keys, operators=(subject_of("tidepool", "operator"),))


async def test_whom_to_believe_stands_beside_the_fleet_and_is_written_when_it_changes() -> None:
    """No push carries it: whoever can push could say that he is the operator."""
    api = Written()
    trusted: list[TrustedCallers | None] = [believing("one")]

    def started() -> Publisher:
        return Publisher(api, "tidepool", tuple, dict, dict, Control(trust=lambda: trusted[-1]))  # type: ignore[arg-type]

    publisher = started()
    first = await publisher.publish()
    await publisher.publish()
    trusted.append(believing("one", "two"))
    turned = await publisher.publish()
    again = await started().publish()  # another operator finds what this one wrote
    trusted.append(None)
    await publisher.publish()

    told = [item["data"].get("trust.json") for item in api.items]
    assert [text and TrustedCallers.model_validate_json(text) for text in told] == trusted
    assert first.issued_at == turned.issued_at == again.issued_at, "gateways have nothing to take anew"
    assert "trust" not in api.items[0]["data"]["fleet.json"]
