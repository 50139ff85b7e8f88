"""The host's memory of SGLang's hierarchical cache: storage behind it is refused, and every copy passes our hooks."""

from __future__ import annotations

from types import SimpleNamespace

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


def test_an_update_of_the_weights_forgets_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on the host, too. No request is meant to match their prefixes: a guard, as in the slots."""
    import torch

    from tessera.rows.generations import Generations
    from tessera.rows.host import HostRows
    from tessera.rows.store import RowStore
    from tessera_patches.rows import runtime, weights

    store = RowStore(2, 4, torch.float32, "cpu")
    store.write(torch.arange(2), torch.ones(2, 4))
    host = HostRows(3, store)
    host.back_up(torch.tensor([0, 2]), torch.tensor([0, 1]))
    for name, value in (("rows", store), ("host_rows", host), ("scheduler", None), ("generations", Generations())):
        monkeypatch.setattr(runtime, name, value)
    monkeypatch.setattr(weights, "has_stages", lambda _: True)  # nobody else is asked
    runner = SimpleNamespace(is_draft_worker=False)
    before = runtime.generations.number
    weights.forget_rows(None, SimpleNamespace(get_model_runner=lambda: runner))
    assert host.rows.isnan().all()
    assert store.rows.isnan().all()
    assert runtime.generations.number == before + 1
