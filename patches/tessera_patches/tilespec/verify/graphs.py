"""CUDA graphs of ragged verifications, by the number of tokens of the batch; SGLang's graphs are by batch size.

They have their own attention backend: graphs of a backend share its buffers, and FlashAttention's uniform graphs rely
on offsets that ragged ones overwrite.
"""

import contextlib
import logging
from typing import Any

from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout, build_capture_verify_lens

from tessera import config
from tessera.tilespec.candidates import DraftShape
from tessera.tilespec.tiers import tiers
from tessera_patches.core import calls
from tessera_patches.core.changes import TemporaryFields
from tessera_patches.engine.attention import (
    backend_of,
    decode_graphs,
    new_backend,
    supports_ragged_graphs,
    with_graphs,
)
from tessera_patches.engine.model import has_mrope
from tessera_patches.tilespec.attention.triton import RaggedTriton, can_be_ragged, make_ragged

logger = logging.getLogger(__name__)


class RaggedGraphs(DecodeCudaGraphRunner):
    """SGLang's graph runner in its ragged mode, which SGLang uses for DSpark, with other sizes.

    Args:
        model_runner: the target's runner.
        attn_backend: an attention backend that no other graphs use.
        shape: the greatest draft of a request.
    """

    def __init__(self, model_runner: Any, attn_backend: Any, shape: DraftShape) -> None:
        calls.count(RaggedGraphs)
        super().__init__(
            model_runner,
            attn_backend=attn_backend,
            speculative_num_steps=shape.forwards,
            speculative_num_draft_tokens=shape.nodes,
        )

    @property
    def ragged_verify_mode(self) -> bool:
        """True; SGLang enables it for DSpark only."""
        return True

    @ragged_verify_mode.setter
    def ragged_verify_mode(self, granted: bool) -> None:
        """Ignores SGLang's constructor."""

    def slots(self, tier: int) -> int:
        """The number of requests of a tier's graph, padding included."""
        most: int = self.max_bs
        return min(tier, most)

    def _ragged_capture_slots(self, num_tokens: int) -> int:
        """Without SGLang's look-up of an environment variable, four times in a step."""
        return self.slots(num_tokens)

    def capture(self) -> None:
        """Captures each tier, by SGLang's loop over batch sizes."""
        with TemporaryFields(RaggedGraphs.capture, self, capture_bs=self.capture_num_tokens, captured_req_width=1):
            super().capture()

    def _stage_ragged_verify_layout(self, ragged_layout: Any, graph_size_key: int) -> None:
        """Copies a layout to the buffers of captured kernels; those of `RaggedTriton` read its own offsets."""
        if not isinstance(backend_of(self), RaggedTriton):
            super()._stage_ragged_verify_layout(ragged_layout, graph_size_key)

    def get_spec_info(self, num_tokens: int) -> Any:
        """The verification input of a capture, with drafts of about equal size."""
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
    """Capture the graphs; None without CUDA graphs, or if attention or model do not support ragged verification."""
    if decode_graphs(model_runner) is None:
        return None
    reason = _unsupported_reason(model_runner, shape)
    if reason is not None:
        what = "whole trees or none" if shape.trees else "chains of one length, which it chooses"
        logger.warning("tessera: %s: --tile-spec verifies %s", reason, what)
        return None
    config.found("ragged_graphs")
    backend = new_backend(model_runner)
    make_ragged(backend)
    return RaggedGraphs(model_runner, backend, shape)


def check_eager(model_runner: Any, shape: DraftShape) -> None:
    """Check that a ragged verification without a graph is possible.

    Raises:
        RuntimeError: the attention backend would silently verify drafts of one size.
    """
    ragged = supports_ragged_graphs(backend_of(model_runner)) and not shape.trees
    if not ragged and model_runner.device != "cpu":
        name = type(backend_of(model_runner)).__name__
        raise RuntimeError(f"tessera: a verification in part on {name}, which has none; this is a bug of --tile-spec")


def _unsupported_reason(model_runner: Any, shape: DraftShape) -> str | None:
    backend = backend_of(model_runner)
    chains = supports_ragged_graphs(backend) and not shape.trees
    if not chains and not can_be_ragged(backend):
        return f"{type(backend).__name__} has no ragged graphs{' of trees' if shape.trees else ''}"
    if has_mrope(model_runner):
        return "this model's positions have three axes"
    return None


def use_graphs(graphs: RaggedGraphs | None, model_runner: Any) -> contextlib.AbstractContextManager[None]:
    """Run the target on ``graphs`` in a ``with`` block; on its own ones if they are None."""
    if graphs is None:
        return contextlib.nullcontext()
    return with_graphs(model_runner, graphs)
