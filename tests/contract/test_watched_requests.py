"""Which rows of a running request may be read for its fingerprints, with SGLang's own request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from tessera.admission import TOKEN_KEY, TOPLOC_KEY
from tessera.fingerprint.options import FingerprintOptions
from tessera.fingerprint.watch import Watch
from tessera_patches.core import carried
from tessera_patches.rows import results, runtime


def test_a_retracted_request_is_read_once_it_is_prefilled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its tokens, and so seems complete while its rows are computed again, chunk by chunk."""
    custom = {TOKEN_KEY: "token ", TOPLOC_KEY: FingerprintOptions().to_wire()}
    req = Req("r", "", [5, 6, 7], SamplingParams(max_new_tokens=100, custom_params=custom))
    carried.take(req)
    watch: Watch[Req] = Watch(results.lacking, stride=1)
    monkeypatch.setattr(runtime, "watch", watch)
    prefilled = SimpleNamespace(reqs=[req])
    results.watch_proven(None, prefilled, None)
    req.output_ids.extend([8] * 33)
    assert watch.step() == [req]
    req.retraction_count += 1
    req.is_retracted = True
    assert watch.take() == []
    req.is_retracted, req.inflight_middle_chunks = False, 1  # as SGLang's prepare_for_extend has it
    results.watch_proven(None, prefilled, None)
    assert watch.step() == []
    req.inflight_middle_chunks = 0
    results.watch_proven(None, prefilled, None)
    assert watch.step() == [req]
    assert watch.take() == [req]
