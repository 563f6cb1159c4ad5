"""One pool from apply to delete on the real cluster with real vLLM; every stream is counted by the client."""

import pytest

from scenarios import insides, life, sight, stage
from scenarios.evidence import BUILD
from scenarios.streams import Load, figures, load
from scenarios.world import RELEASE, SYSTEM_NAMESPACE, World

# Five engine starts on two cores take their time.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

TOKENS = 200
# At a few milliseconds a token these streams outlast the stabilisation window and the decision.
SLOW_STREAMS = 3
SLOW_TOKENS = 8000


def test_a_pool_lives_from_apply_to_delete_and_no_stream_is_cut(world: World) -> None:
    life.apply_pool(world)
    stage.find_service(world)
    told = stage.helm(world.kube, world.helm, "test", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--logs")
    assert world.model in told
    with load(world.routes(), world.model, TOKENS) as clients:
        _under_load(world, clients)
        life.to_zero(world)
        life.back_from_zero(world, clients)
    life.delete_pool(world)
    clients.write(BUILD / "streams.jsonl")
    world.evidence.facts |= world.facts | figures(clients.records)
    world.evidence.write()

    accounted = {stream.number for stream in world.on_killed_engine}
    failed = [stream for stream in clients.records if not stream.whole and stream.number not in accounted]
    assert failed == []
    assert sum(stream.received for stream in clients.records if stream.whole) == sum(
        stream.asked for stream in clients.records if stream.whole
    )


def _under_load(world: World, clients: Load) -> None:
    try:
        life.scale_up(world, clients)
        life.roll_out(world, clients, {"spec": {"engine": {"chunkedPrefill": True}}})
        life.restart_operator(world, clients)
        world.on_killed_engine = life.kill_engine(world, clients, insides.kill_container)
        sight.see_dashboards(world)
        life.scale_down(world, clients, SLOW_STREAMS, SLOW_TOKENS)
    finally:
        clients.write(BUILD / "streams.jsonl")
