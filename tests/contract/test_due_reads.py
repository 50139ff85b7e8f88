"""Which rows of a running request may be read, with SGLang's own request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from tessera import carry
from tessera.capabilities.fingerprints.options import FingerprintOptions
from tessera.capabilities.registry import BY_NAME
from tessera.rows.due import DueReads
from tessera_patches.rows import results, runtime


def test_a_retracted_request_is_read_once_it_is_prefilled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its tokens, and so seems complete while its rows are computed again, chunk by chunk."""
    wires = {"fingerprints": BY_NAME["fingerprints"].to_wire(FingerprintOptions())}
    req = Req("r", "", [5, 6, 7], SamplingParams(**carry.put({"max_new_tokens": 100}, carry.Live(), wires)))
    due: DueReads[Req] = DueReads(results.tokens_to_next_read, stride=1)
    monkeypatch.setattr(runtime, "due", due)
    prefilled = SimpleNamespace(reqs=[req])
    results.note_prefilled(None, prefilled, None)
    req.output_ids.extend([8] * 33)
    assert due.step() == [req]
    req.retraction_count += 1
    req.is_retracted = True
    assert due.take() == []
    req.is_retracted, req.inflight_middle_chunks = False, 1  # as SGLang's prepare_for_extend has it
    results.note_prefilled(None, prefilled, None)
    assert due.step() == []
    req.inflight_middle_chunks = 0
    results.note_prefilled(None, prefilled, None)
    assert due.step() == [req]
    assert due.take() == [req]
