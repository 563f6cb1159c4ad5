"""The cluster's addresses stay out of the way of those that the machine has."""

from pathlib import Path

import pytest

from cluster.layout import NODES, PLANE, Layout, choose_octet, route_destinations

LAYOUT = Layout(Path("/state"), 211)


def test_destinations_are_read_from_the_routing_table() -> None:
    table = "default via 192.0.2.1 dev eth0\n10.211.0.0/24 dev x proto kernel\n10.9.0.7 via 192.0.2.1 dev eth0\n"
    assert route_destinations(table) == ["10.211.0.0/24", "10.9.0.7/32"]


@pytest.mark.parametrize(
    ("taken", "octet", "why"),
    [
        ([], 211, "the first choice, when nothing is in the way"),
        (["192.0.2.0/24", "10.0.0.0/16"], 211, "other networks do not matter"),
        (["10.211.0.0/24"], 214, "the machines' network is taken"),
        (["10.212.3.0/24"], 214, "a part of the pods' network is taken"),
        (["10.213.0.1/32"], 214, "one address of the service range is enough"),
        (["10.211.0.0/16", "10.214.0.0/16"], 217, "two choices are taken"),
        (["fd00::/8"], 211, "IPv6 does not meet IPv4"),
    ],
)
def test_the_first_free_range_is_taken(taken: list[str], octet: int, why: str) -> None:
    assert choose_octet(taken) == octet, why


def test_a_machine_without_a_free_range_is_told_so() -> None:
    with pytest.raises(ValueError, match="remove some routes"):
        choose_octet(["10.0.0.0/8"])


def test_everybody_reaches_every_pod_network_but_his_own_by_way_of_its_node() -> None:
    first, second = NODES
    to_first = (LAYOUT.node_pods(first), LAYOUT.node_address(first))
    to_second = (LAYOUT.node_pods(second), LAYOUT.node_address(second))
    services = (LAYOUT.service_range, LAYOUT.node_address(first))
    assert LAYOUT.routes(first) == [to_second]
    assert LAYOUT.routes(second) == [to_first]
    assert LAYOUT.routes(PLANE) == [to_first, to_second, services]
    assert LAYOUT.routes("") == [to_first, to_second, services]
