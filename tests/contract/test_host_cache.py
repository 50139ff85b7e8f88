"""The host's memory of SGLang's hierarchical cache: storage behind it is refused, and every copy passes our hooks."""

from __future__ import annotations

import pytest

from tessera_testing.marks import needs

pytestmark = needs("host_cache")


def test_storage_is_refused_while_a_server_runs() -> None:
    """As at start: KV that another server computed would come with the rows of what lay there before."""
    from tessera_patches.rows.host import refuse_storage

    def attach(*_: object) -> None:
        pytest.fail("it was attached")

    answer = refuse_storage(attach, None, None)
    assert not answer.success
    assert "without its hidden states" in answer.message


def test_pools_that_copy_in_another_way_are_found() -> None:
    """Those of keys and values, and of latents, copy as all do; two kinds have functions of their own."""
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.unified import UnifiedPageEnvelopeHostPool

    from tessera_patches.engine.host_cache import is_copied_as_others

    found = [is_copied_as_others(object.__new__(kind)) for kind in (MHATokenToKVPoolHost, MLATokenToKVPoolHost)]
    assert found == [True, True]
    assert not is_copied_as_others(object.__new__(UnifiedPageEnvelopeHostPool))
