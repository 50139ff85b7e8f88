"""Options and models that rows do not support."""

from __future__ import annotations

from typing import Any

import pytest

from tessera import refusal as tables
from tessera.capabilities.inject import refusals as injection
from tessera.refusal import Refusal, field_of, lines
from tessera.rows.refusals import BESIDE_STATE, REFUSALS, SWITCH, refused_model
from tessera_testing.server_options import server_options

DEFAULTS: dict[str, Any] = {
    "disaggregation_mode": "null",
    "pp_size": 1,
    "dcp_size": 1,
    "hicache_storage_backend": None,
    "enable_multi_layer_eagle": False,
    "speculative_algorithm": None,
    "moe_a2a_backend": "none",
    "smg_grpc_mode": False,
    "grpc_port": None,
    "encoder_only": False,
    "enable_dp_attention": False,
    "enable_two_batch_overlap": False,
    "enable_pdmux": False,
    "is_embedding": False,
    "enable_unified_memory": False,
    "enable_return_aux_hidden_states": False,
}
OTHERS = {"null": "prefill", "none": "deepep", 1: 2, None: "something", False: True}
SET = {name: OTHERS[default] for name, default in DEFAULTS.items()}
BESIDE = {name: {"speculative_algorithm": "EAGLE"} for name in ("pp_size", "enable_dp_attention")}
"""What is refused only beside another option."""


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of SGLang with which all lines count."""
    monkeypatch.setattr(tables, "version", lambda _: "0.5.17")


def args(**changed: Any) -> Any:
    """SGLang's options as far as we look at them."""
    return server_options(**DEFAULTS | changed)


def test_defaults_are_fine() -> None:
    """A plain server starts."""
    assert lines(REFUSALS, args(), SWITCH) == []


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_is_refused_by_its_name(name: str) -> None:
    """One option changed, one line that names it as the command line does."""
    (line,) = lines(REFUSALS, args(**{name: SET[name]} | BESIDE.get(name, {})), SWITCH)
    assert line.startswith(f"--{name.replace('_', '-')} ")
    assert " cannot be combined with --enable-return-hidden-states: " in line


def test_what_an_option_comes_to_counts() -> None:
    """Newer versions of SGLang turn --enable-dp-attention itself off, and keep how many ranks share a batch."""
    (line,) = lines(REFUSALS, args(attn_dp_size=2, speculative_algorithm="EAGLE"), SWITCH)
    assert line.startswith("--enable-dp-attention with --speculative-algorithm cannot be combined with ")
    assert lines(REFUSALS, args(attn_dp_size=1, speculative_algorithm="EAGLE"), SWITCH) == []


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "STANDALONE", "NGRAM"])
def test_drafts_that_are_fine(algorithm: str) -> None:
    """Rows of accepted drafts only."""
    assert lines(REFUSALS, args(speculative_algorithm=algorithm), SWITCH) == []


def test_the_test_knows_every_refusal() -> None:
    """A new refusal needs a line here."""
    assert {field_of(one.option) for one in REFUSALS} == DEFAULTS.keys()


@pytest.mark.parametrize("kind", ["no_full_pool", "is_encoder_decoder"])
def test_models(kind: str) -> None:
    """Models whose KV slots are not tokens."""
    none = {"no_full_pool": False, "is_encoder_decoder": False}
    assert refused_model(**none) is None
    assert "does not support this model" in (refused_model(**none | {kind: True}) or "")


STATE = {
    SWITCH: BESIDE_STATE,
    injection.SWITCH: injection.BESIDE_STATE,
}


@pytest.mark.parametrize(("feature", "refusal"), [(feature, one) for feature, table in STATE.items() for one in table])
def test_each_is_refused_beside_a_state(feature: str, refusal: Refusal) -> None:
    """Nothing is where each has its default."""
    table = STATE[feature]
    off = dict.fromkeys((*(field_of(one.option) for one in table), "disable_radix_cache"), None)
    name, _, value = refusal.option.partition(" ")
    on = value or "EAGLE3"
    assert lines(table, server_options(**off), feature) == []
    (line,) = lines(table, server_options(**off | {field_of(name): on}), feature)
    assert line.startswith(f"{refusal.option} cannot be combined with {feature}: ")


def test_states_that_no_prefix_comes_back_to() -> None:
    """Where SGLang keeps no prefixes, how it would keep their states does not matter."""
    given = {field_of(one.option): None for one in BESIDE_STATE} | {"mamba_radix_cache_strategy": "extra_buffer"}
    assert len(lines(BESIDE_STATE, server_options(**given, disable_radix_cache=False), SWITCH)) == 1
    assert lines(BESIDE_STATE, server_options(**given, disable_radix_cache=True), SWITCH) == []


INJECTION = DEFAULTS | {"enable_attn_tp_input_scattered": False, "kv_events_config": None, "enable_watermark": False}


@pytest.mark.parametrize(
    "refusal",
    [one for one in (*REFUSALS, *BESIDE_STATE, *injection.REFUSALS, *injection.BESIDE_STATE) if one.versions],
)
def test_what_later_versions_serve_is_not_refused_there(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line may be about some versions of SGLang, and says so."""
    name, _, beside = refusal.option.partition(" ")
    on = {field_of(name): OTHERS[INJECTION.get(field_of(name), False)]}
    algorithm = beside.removeprefix("with --speculative-algorithm") or "NGRAM"
    states = {"mamba_radix_cache_strategy": beside, "disable_radix_cache": False}
    given = server_options(**INJECTION | on | ({"speculative_algorithm": algorithm} if beside else {}) | states)
    assert refusal.applies_to(given)
    assert refusal.reason.endswith(" (SGLang <0.5.23; 0.5.23 serves it)")
    monkeypatch.setattr(tables, "version", lambda _: "0.5.23")
    assert not refusal.applies_to(given)


@pytest.mark.parametrize("refusal", injection.REFUSALS)
def test_each_is_refused_with_injection(refusal: Any) -> None:
    """The same for --enable-injection."""
    name = field_of(refusal.option)
    value = refusal.option.partition(" ")[2]
    changed = {name: value or OTHERS[INJECTION[name]]}
    assert lines(injection.REFUSALS, server_options(**INJECTION), injection.SWITCH) == []
    (line,) = lines(injection.REFUSALS, server_options(**INJECTION | changed), injection.SWITCH)
    assert line.startswith(f"{refusal.option} cannot be combined with --enable-injection: ")
