"""What a step leaves out between its graphs, and when it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.environ import envs

from tessera_patches.tilespec.draft.drafts import ChainDraftWorker, TreeDraftWorker


@pytest.mark.parametrize("ours", [ChainDraftWorker, TreeDraftWorker])
def test_draft_forwards_are_captured_without_copies_of_their_inputs(ours: type) -> None:
    """In the whole capture, and in no other forward."""

    class Drafts:
        speculative_num_draft_tokens = 4
        server_args = SimpleNamespace(speculative_num_draft_tokens=8, override=lambda *_, **__: None)
        draft_runner = SimpleNamespace(server_args=server_args, model_config=SimpleNamespace(vocab_size=9), model=None)
        draft_extend_attn_backend = None
        hot_token_id = None
        target_worker = SimpleNamespace(model_runner=draft_runner)

        def _capture_cuda_graphs(self) -> None:
            seen.append(envs.SGLANG_EAGER_INPUT_NO_COPY.get())

    seen: list[bool] = []
    drafts: Any = type("Ours", (ours, Drafts), {})()
    drafts._capture_cuda_graphs()
    assert seen == [True]
    assert not envs.SGLANG_EAGER_INPUT_NO_COPY.get()
