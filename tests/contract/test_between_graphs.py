"""What a step leaves out between its graphs, and when it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.environ import envs

from tessera_patches.tilespec.draft import proposals
from tessera_patches.tilespec.draft.chains import omits_links
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
        target_worker = SimpleNamespace(model_config=SimpleNamespace(vocab_size=9))

        def _capture_cuda_graphs(self) -> None:
            seen.append(envs.SGLANG_EAGER_INPUT_NO_COPY.get())

    seen: list[bool] = []
    drafts: Any = type("Ours", (ours, Drafts), {})()
    drafts._capture_cuda_graphs()
    assert seen == [True]
    assert not envs.SGLANG_EAGER_INPUT_NO_COPY.get()


@pytest.mark.parametrize(
    ("reads_no_mask", "has_grammar", "expected"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_chains_have_no_links_where_nobody_follows_them(
    reads_no_mask: bool, has_grammar: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention of other backends reads the mask, and grammars follow the links."""
    monkeypatch.setattr(proposals, "samples_drafts", lambda: False)

    class Drafts:
        target_worker: Any

        def draft(self, _: Any) -> bool | None:
            return omits_links.value

    drafts: Any = type("Ours", (ChainDraftWorker, Drafts), {})()
    backend = SimpleNamespace(reads_no_mask=True) if reads_no_mask else SimpleNamespace()
    drafts.target_worker = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=backend))
    sampling = SimpleNamespace(is_any_greedy=True)
    assert drafts.draft(SimpleNamespace(has_grammar=has_grammar, sampling_info=sampling)) is expected
    assert omits_links.value is None
