"""CUDA graphs for verifications in part: keyed by the tokens of the batch, beside SGLang's, which are by batch size.

They have an attention backend of their own. A backend's graphs share its buffers, and FlashAttention's uniform replay
relies on offsets that a ragged one would overwrite.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout, build_capture_verify_lens

from tessera.tilespec.candidates import DraftShape
from tessera.tilespec.tiers import tiers
from tessera_patches.core.changes import TemporaryFields
from tessera_patches.tilespec.attention.flash import fuse_verify
from tessera_patches.tilespec.attention.triton import can_be_ragged, make_ragged
from tessera_patches.tilespec.verify.load_once import LoadedOnce

logger = logging.getLogger(__name__)


class RaggedGraphs(LoadedOnce):
    """SGLang's runner in the ragged mode that it has for DSpark, at sizes of our choice.

    Args:
        model_runner: of the target.
        attn_backend: no other graphs may use it.
        shape: the most that is drafted for a request.
    """

    def __init__(self, model_runner: Any, attn_backend: Any, shape: DraftShape) -> None:
        super().__init__(
            model_runner,
            attn_backend=attn_backend,
            speculative_num_steps=shape.forwards,
            speculative_num_draft_tokens=shape.nodes,
        )

    @property
    def ragged_verify_mode(self) -> bool:
        """Always: SGLang asks the environment, and grants it to DSpark alone."""
        return True

    @ragged_verify_mode.setter
    def ragged_verify_mode(self, granted: bool) -> None:
        """SGLang's constructor says what it grants."""

    def slots(self, tier: int) -> int:
        """How many requests its graph is for, those of padding among them."""
        most: int = self.max_bs
        return min(tier, most)

    def _ragged_capture_slots(self, num_tokens: int) -> int:
        """SGLang asks the environment too, four times in a step, whether it tests something else."""
        return self.slots(num_tokens)

    def capture(self) -> None:
        """Capture each tier: SGLang's loop, over sizes that are tokens and not requests."""
        with TemporaryFields(self, capture_bs=self.capture_num_tokens, captured_req_width=1):
            super().capture()

    def _stage_ragged_verify_layout(self, ragged_layout: Any, graph_size_key: int) -> None:
        """Copies a layout to where captured kernels read it, if any do."""
        if not getattr(self.attn_backend, "captures_no_layout", False):
            super()._stage_ragged_verify_layout(ragged_layout, graph_size_key)

    def get_spec_info(self, num_tokens: int) -> Any:
        """What a capture verifies: drafts of about equal size."""
        spec_info = super().get_spec_info(num_tokens)
        lens = build_capture_verify_lens(
            num_tokens=num_tokens,
            num_slots=self.slots(num_tokens),
            num_draft_tokens=self.speculative_num_draft_tokens,
        )
        layout = RaggedVerifyLayout.from_verify_lens(
            verify_lens_cpu=lens, device=self.device, grid=self.capture_num_tokens
        )
        self._captured_ragged_layouts[num_tokens] = layout
        spec_info.ragged_verify_layout = layout
        return spec_info

    def _build_ragged_verify_token_buckets(self) -> list[int]:
        return tiers(max(self.capture_bs) * self.captured_req_width)


def capture(model_runner: Any, shape: DraftShape) -> RaggedGraphs | None:
    """Capture them; None where there are no graphs, or where attention or model know drafts of one size only."""
    if model_runner.decode_cuda_graph_runner is None:
        return None
    reason = _of_one_size(model_runner, shape)
    if reason is not None:
        what = "whole trees or none" if shape.trees else "chains of one length, which it chooses"
        logger.warning("tessera: %s: --tile-spec verifies %s", reason, what)
        return None
    with TemporaryFields(model_runner, init_new_workspace=model_runner.init_new_workspace):  # which the next line sets
        backend = model_runner._get_attention_backend(init_new_workspace=True)
    make_ragged(backend)
    fuse_verify(backend)
    return RaggedGraphs(model_runner, backend, shape)


def check_eager(model_runner: Any, shape: DraftShape) -> None:
    """Some attention backends would verify a ragged batch as if its drafts were of one size, and say nothing.

    Raises:
        RuntimeError: this one would.
    """
    ragged = model_runner.attn_backend.supports_ragged_verify_graph and not shape.trees
    if not ragged and model_runner.device != "cpu":
        name = type(model_runner.attn_backend).__name__
        raise RuntimeError(f"tessera: a verification in part on {name}, which has none; this is a bug of --tile-spec")


def _of_one_size(model_runner: Any, shape: DraftShape) -> str | None:
    backend = model_runner.attn_backend
    chains = backend.supports_ragged_verify_graph and not shape.trees
    if not chains and not can_be_ragged(backend):
        return f"{type(backend).__name__} has no ragged graphs{' of trees' if shape.trees else ''}"
    if model_runner.model_config.model_is_mrope:
        return "this model's positions have three axes"
    return None


def in_force(graphs: RaggedGraphs | None, model_runner: Any) -> contextlib.AbstractContextManager[None]:
    """The target runs on ``graphs`` for one verification; on its own where there are none."""
    if graphs is None:
        return contextlib.nullcontext()
    return TemporaryFields(model_runner, decode_cuda_graph_runner=graphs, attn_backend=graphs.attn_backend)
