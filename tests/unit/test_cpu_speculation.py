"""Speculative decoding on the CPU engine: when it is on, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.cpu import refused, refused_model, speculates
from tessera_testing.server_options import server_options

DEFAULTS: dict[str, Any] = {
    "device": "cpu",
    "speculative_algorithm": "EAGLE",
    "speculative_draft_attention_backend": None,
    "speculative_eagle_topk": 4,
    "enable_multi_layer_eagle": False,
    "page_size": 1,
}


def args(backends: tuple[str, str] = ("torch_native", "torch_native"), **changed: Any) -> Any:
    """SGLang's options as far as we look at them."""
    return server_options(**DEFAULTS | changed, attention_backends=backends)


def test_off_without_drafts_without_cpu_and_with_another_backend() -> None:
    """Then nothing of ours is installed."""
    assert speculates(args())
    assert not speculates(args(speculative_algorithm=None))
    assert not speculates(args(device="cuda"))
    assert not speculates(args(("intel_amx", "intel_amx")))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"speculative_algorithm": "DFLASH"}, "--speculative-algorithm DFLASH: on the CPU engine EAGLE, EAGLE3, "),
        ({"backends": ("torch_native", "triton")}, "--attention-backend triton: "),
        ({"speculative_draft_attention_backend": "triton"}, "--attention-backend triton: "),
        ({"enable_multi_layer_eagle": True}, "--enable-multi-layer-eagle is not supported"),
        ({"page_size": 16}, "--page-size 16: --speculative-eagle-topk above 1 on the CPU engine needs 1"),
    ],
)
def test_refusals_name_the_option(changed: dict[str, Any], said: str) -> None:
    """One line for each."""
    (line,) = refused(args(**changed))
    assert line.startswith(said)


def test_what_is_supported() -> None:
    """Chains have no trouble with pages."""
    assert refused(args()) == []
    assert refused(args(page_size=16, speculative_eagle_topk=1)) == []
    assert refused(args(page_size=16, speculative_eagle_topk=None, speculative_algorithm="NGRAM")) == []
    assert refused_model(None) is None
    assert refused_model(-1) is None
    assert "sliding-window" in (refused_model(4096) or "")
