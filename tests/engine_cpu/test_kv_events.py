"""What routers learn of the prefix cache (``--kv-events-config``) where vectors are injected."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import zmq

from tessera.refusal import BEFORE_0_5_23
from tessera_testing.endpoints import flush_cache
from tessera_testing.free_port import free_port
from tessera_testing.injected import Matrix, ask, check, override, prompt_of, replaced, vectors_of
from tessera_testing.marks import is_installed
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(is_installed(BEFORE_0_5_23), reason="refused with this SGLang"),
]
PLACE, LENGTH = 20, 60


def stored(events: zmq.Socket[bytes]) -> list[int]:
    """The hashes of the blocks that were stored since, in their order."""
    hashes: list[int] = []
    while events.poll(2000):
        *_, batch = events.recv_multipart()
        decoded: Any = msgspec.msgpack.decode(batch)
        published = decoded["events"] if isinstance(decoded, dict) else decoded[1]
        for event in published:
            fields = event if isinstance(event, dict) else dict(zip(("type", "block_hashes"), event, strict=False))
            hashes += fields["block_hashes"] if fields["type"] == "BlockStored" else []
    return hashes


def test_a_block_behind_a_vector_has_a_hash_of_its_own(server_pool: ServerPool, hf: HuggingFace) -> None:
    """So a router that finds prefixes by the hashes of token ids never takes one for the other."""
    port = free_port()
    config = json.dumps({"publisher": "zmq", "endpoint": f"tcp://*:{port}"})
    options = ("--enable-return-hidden-states", "--enable-injection", "--kv-events-config", config)
    server = server_pool.get(*options)
    prompt = prompt_of(LENGTH, seed=77)
    found: list[list[int]] = []
    with zmq.Context() as context, context.socket(zmq.SUB) as events:
        events.setsockopt(zmq.SUBSCRIBE, b"")
        events.connect(f"tcp://127.0.0.1:{port}")
        events.poll(2000)
        vectors: list[Matrix | None] = [None, vectors_of(1, 1), vectors_of(1, 2), vectors_of(1, 1), None]
        for vector in vectors:
            given = None if vector is None else override([PLACE], vector)
            answer = ask(server, prompt, given)
            check(hf, prompt, answer, (lambda embeds: embeds) if vector is None else replaced([PLACE], vector))
            found.append(stored(events)[:LENGTH])
            flush_cache(server)
            stored(events)
    plain, one, other, *again = found
    assert [len(hashes) for hashes in found] == [LENGTH] * 5
    assert again == [one, plain]
    assert plain[:PLACE] == one[:PLACE] == other[:PLACE]
    assert not {*plain[PLACE:]} & {*one[PLACE:]}
    assert not {*one[PLACE:]} & {*other[PLACE:]}
