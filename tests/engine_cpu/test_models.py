"""Architectures that differ from the tiny model where rows and vectors are concerned: random weights, real servers.

Each is made from a configuration of transformers, whose own code is the reference.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tessera.capabilities.fingerprints.answer import FINGERPRINTS
from tessera.launching.server import Server
from tessera_testing.claims import verdicts
from tessera_testing.injected import ask, check, override, prompt_of, replaced, vectors_of
from tessera_testing.librarys import build_proofs_base64
from tessera_testing.pool import ServerPool
from tessera_testing.reference import HuggingFace
from tessera_testing.refusal import Refusal
from tessera_testing.tiny import TINY

OPTIONS = ("--toploc-verification", "--enable-injection", "--chunked-prefill-size", "32")
SHAPE: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "initializer_range": 0.05,
}
MLA = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64}
ROUTED = {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}


class Case(NamedTuple):
    """A model and its reference.

    Attributes:
        kind: of transformers' configuration, the reference's.
        fields: of it, beyond `SHAPE`.
        served: what SGLang is told instead, of the same weights.
        scale: what SGLang's model multiplies embeddings by, those of ids and given ones alike.
    """

    kind: str
    fields: dict[str, Any]
    served: dict[str, Any]
    scale: int = 1


CASES = {
    # Its KV pool holds latents, beside a mixture of experts.
    "mla": Case(
        "deepseek_v3",
        {
            **MLA,
            **ROUTED,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
        {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},  # as published ones say
    ),
    # Its get_input_embeddings takes the ids.
    "mimo": Case("qwen2", {}, {"architectures": ["MiMoForCausalLM"]}),
    # Has no get_input_embeddings; its head reads rows / 4.
    "minicpm": Case(
        "llama",
        {},
        {"architectures": ["MiniCPMForCausalLM"], "scale_emb": 12, "scale_depth": 2**0.5, "dim_model_base": 64},
        scale=12,
    ),
}
# Multiplies embeddings by 12 where it makes them itself, and not those that it is given.
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
    "logits_scaling": 8.0,
    "layer_types": ["attention"] * 2,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 256,
    "position_embedding_type": "rope",
}


def made(folder: Path, kind: str, /, **fields: Any) -> Path:
    """A model of random weights, with the tiny model's tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE | fields)).float()
    model.save_pretrained(folder)
    for file in TINY.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


class Model:
    """A running case."""

    def __init__(self, server: Server, hf: HuggingFace, scale: int) -> None:
        self.server, self.hf, self._scale = server, hf, scale

    def edit(self, places: Sequence[int] = (), vectors: Any = ()) -> Callable[[torch.Tensor], torch.Tensor]:
        """What the reference makes of its embeddings."""

        def edited(embeds: torch.Tensor) -> torch.Tensor:
            own: torch.Tensor = replaced(list(places), vectors)(embeds) if places else embeds
            return own * self._scale

        return edited


@pytest.fixture(params=CASES)
def model(server_pool: ServerPool, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Model:
    """One server for each."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp(request.param)
    reference = made(folder / "reference", case.kind, **case.fields)
    served = shutil.copytree(reference, folder / "served")
    config = json.loads((served / "config.json").read_text())
    (served / "config.json").write_text(json.dumps(config | case.served))
    return Model(server_pool.get(*OPTIONS, model=served), HuggingFace(reference), case.scale)


def test_rows_vectors_and_fingerprints(model: Model) -> None:
    """Rows are the reference's, cold, chunked and cached, with vectors and without; fingerprints are the library's."""
    prompt, places, vectors = prompt_of(60, seed=50), [20, 21, 40], vectors_of(3, 1)
    plain, injected = model.edit(), model.edit(places, vectors)
    first = ask(model.server, prompt, override(places, vectors))  # what it computes at plain ids is cached for all
    check(model.hf, prompt, first, injected)
    for cached in (20, 59):
        answer = ask(model.server, prompt, max_new_tokens=8)
        assert answer["meta_info"]["cached_tokens"] == cached
        check(model.hf, prompt, answer, plain)
    found = answer["meta_info"][FINGERPRINTS]
    expected = torch.from_numpy(model.hf.edited([*prompt, *answer["output_ids"][:-1]], plain)).bfloat16()
    claim = {"input_ids": prompt, "output_ids": answer["output_ids"], "fingerprints": found}
    theirs = {**claim, "fingerprints": build_proofs_base64([expected[:60], *expected[60:]], 32, 128)}
    assert verdicts(model.server, claim, theirs) == ["pass", "pass"]
    other = {**theirs, "fingerprints": build_proofs_base64([expected[:60] / 4, *expected[60:] / 4], 32, 128)}
    assert verdicts(model.server, other) == ["fail"]


def test_a_model_that_makes_other_embeddings_of_ids_is_refused(refusal: Refusal, tmp_path: Path) -> None:
    """By its name, before it serves: its rows, and the prefixes that it caches, would be another model's."""
    log = refusal(made(tmp_path / "granite", "granitemoehybrid", **GRANITE), *OPTIONS)
    assert "refusing to start: --enable-injection does not support GraniteMoeHybridForCausalLM: rows of the same" in log
