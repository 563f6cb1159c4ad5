"""Bounds and timeouts of the data path; every one is a flag of the program."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds.

    `header_seconds`: from a request's first byte to the end of its head. `body_seconds`: between two pieces of a
    request's body. `idle_seconds`: a kept-alive client connection without a request. `stall_seconds`: a client
    that takes no bytes of its answer. `linger_seconds`: a connection that falls idle while draining, without an
    answer that said it was the last; its client may be sending the next request at this moment, and few clients
    send one again that met a close. `first_byte_seconds`: from sending a request to the first byte of its
    answer (of a stream: of its first event); queueing in the engine and prefill count. `chunk_seconds`: between
    two pieces of an answer. `upstream_idle_seconds`: below the 5 s after which vLLM's server closes idle
    connections, so that we close first. `front_bytes`: of a body that is larger than `replay_bytes` so much is
    read before the rest is passed on as it comes; with one read more it must fit into `replay_bytes`.
    """

    max_connections: int = 16_384
    max_head_bytes: int = 65_536
    max_body_bytes: int = 32 << 20
    # Bodies of all requests at once; a request beyond it gets 503 and Retry-After.
    max_bodies_bytes: int = 1 << 30
    # Large bodies on disk, of all requests at once; the next one gets 503 and Retry-After. 0: memory has them.
    max_stored_bytes: int = 1 << 30
    max_pipelined: int = 1_000
    front_bytes: int = 576 << 10
    replay_bytes: int = 1 << 20
    replay_total_bytes: int = 64 << 20
    header_seconds: float = 15.0
    body_seconds: float = 30.0
    idle_seconds: float = 75.0
    stall_seconds: float = 300.0
    linger_seconds: float = 1.0
    connect_seconds: float = 3.0
    first_byte_seconds: float = 600.0
    chunk_seconds: float = 600.0
    upstream_idle_seconds: float = 4.0
    max_idle_upstream: int = 1_024
    # How often deadlines are looked at; one pass over all connections, no timer for each request.
    sweep_seconds: float = 0.5
