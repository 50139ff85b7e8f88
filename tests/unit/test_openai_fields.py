"""What a collector takes of the engine's answers for the choices of OpenAI's."""

from __future__ import annotations

from tessera.http.openai import Collector, put_on_choices

FINGERPRINTS = "toploc_verification_fingerprints"


def test_pieces_of_a_stream_add_up() -> None:
    """Fingerprints that were not sent yet, in their order."""
    collector = Collector()
    for piece in (["a"], ["b", "c"]):
        collector.note(0, {"id": "x", FINGERPRINTS: piece})
    assert collector.pop(0) == {FINGERPRINTS: ["a", "b", "c"]}
    assert collector.pop(0) == {}


def test_null_takes_back_what_was_not_sent() -> None:
    """Once nobody can vouch for the rows, the choice says so and why, and a chat's message has the null."""
    collector = Collector()
    collector.note(0, {"id": "x", FINGERPRINTS: ["a"]})
    collector.note(0, {"id": "x", FINGERPRINTS: None, "embedding": None, "rows_unavailable": "why"})
    collector.note(1, {"id": "x", FINGERPRINTS: ["b"]})
    choices = [{"index": 0, "message": {}}, {"index": 1, "message": {}}]
    assert put_on_choices({"choices": choices}, collector)["choices"] == [
        {"index": 0, "message": {FINGERPRINTS: None}, "embedding": None, "rows_unavailable": "why"},
        {"index": 1, "message": {FINGERPRINTS: ["b"]}},
    ]


def test_no_token_is_listed_where_none_is_generated() -> None:
    """SGLang samples one where ``max_tokens`` is 0; those of the prompt stay."""
    sampled = {"output_token_logprobs": [[-1.0, 2, "c"]], "output_token_logprobs_length": 1}
    prompt = {"id": "x", "input_token_logprobs": [[None, 1, "a"]]}
    for generates, expected in (
        (True, sampled),
        (False, {"output_token_logprobs": [], "output_token_logprobs_length": 0}),
    ):
        meta = {**prompt, **sampled}
        Collector(generates=generates).note(0, meta)
        assert meta == {**prompt, **expected}
