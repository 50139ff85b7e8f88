"""What ``--tile-spec`` is not combined with, by the options alone; real starts are in ``tests/faults``."""

from __future__ import annotations

import pytest

from tessera import refusal as tables
from tessera.tilespec.refusals import refused, refused_model
from tessera_testing.server_options import server_options

FINE = {
    "speculative_algorithm": "EAGLE",
    "speculative_eagle_topk": 1,
    "speculative_adaptive": False,
    "speculative_draft_attention_backend": None,
    "attention_backends": ("triton", "fa3"),
    "enable_deterministic_inference": False,
    "enable_multi_layer_eagle": False,
    "pp_size": 1,
    "dcp_size": 1,
    "moe_a2a_backend": "none",
    "speculative_moe_a2a_backend": "none",
    "enable_dp_attention": False,
    "enable_two_batch_overlap": False,
    "enable_pdmux": False,
    "enable_unified_memory": False,
    "disaggregation_mode": "null",
    "enable_attn_tp_input_scattered": False,
    "is_embedding": False,
    "smg_grpc_mode": False,
    "grpc_port": None,
    "encoder_only": False,
    "enable_lora": False,
    "disable_cuda_graph_padding": False,
    "debug_cuda_graph": False,
}


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of SGLang with which all lines count."""
    monkeypatch.setattr(tables, "version", lambda _: "0.5.17")


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("speculative_algorithm", None, "--speculative-algorithm"),
        ("speculative_algorithm", "NGRAM", "--speculative-algorithm"),
        ("speculative_adaptive", True, "--speculative-adaptive"),
        ("enable_deterministic_inference", True, "--enable-deterministic-inference"),
        ("enable_multi_layer_eagle", True, "--enable-multi-layer-eagle"),
        ("pp_size", 2, "--pp-size above 1 "),
        ("attention_backends", ("fa3", "triton"), "--speculative-draft-attention-backend fa3 "),
        ("speculative_draft_attention_backend", "fa3", "--speculative-draft-attention-backend fa3 "),
        ("dcp_size", 2, "--dcp-size above 1 "),
        ("moe_a2a_backend", "deepep", "--moe-a2a-backend "),
        ("speculative_moe_a2a_backend", "deepep", "--speculative-moe-a2a-backend "),
        ("enable_dp_attention", True, "--enable-dp-attention"),
        ("enable_two_batch_overlap", True, "--enable-two-batch-overlap"),
        ("enable_pdmux", True, "--enable-pdmux"),
        ("enable_unified_memory", True, "--enable-unified-memory"),
        ("disaggregation_mode", "decode", "--disaggregation-mode"),
        ("enable_attn_tp_input_scattered", True, "--enable-attn-tp-input-scattered"),
        ("is_embedding", True, "--is-embedding"),
        ("smg_grpc_mode", True, "--smg-grpc-mode"),
        ("grpc_port", 40000, "--grpc-port"),
        ("encoder_only", True, "--encoder-only"),
        ("enable_return_aux_hidden_states", True, "--enable-return-aux-hidden-states"),
        ("enable_lora", True, "--enable-lora"),
        ("enable_watermark", True, "--enable-watermark"),
        ("disable_cuda_graph_padding", True, "--disable-cuda-graph-padding"),
        ("debug_cuda_graph", True, "--debug-cuda-graph"),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(name: str, value: object, option: str) -> None:
    """One line for each."""
    assert refused(server_options(**FINE)) == []
    (line,) = refused(server_options(**(FINE | {name: value})))
    assert option in line
    assert "--tile-spec" in line


def test_more_nodes_than_candidates_are_refused() -> None:
    """A draft of 3 steps with 2 branches has 2 + 2 * 4 candidates beside the root."""
    tree = FINE | {"speculative_eagle_topk": 2, "speculative_num_steps": 3, "speculative_num_draft_tokens": 11}
    assert refused(server_options(**tree)) == []
    (line,) = refused(server_options(**(tree | {"speculative_num_draft_tokens": 12})))
    assert line.startswith("--speculative-num-draft-tokens cannot be combined with --tile-spec")


def test_a_model_with_state_is_refused() -> None:
    """One line, and none for others."""
    assert refused_model(keeps_state=False) is None
    assert "Mamba" in str(refused_model(keeps_state=True))
