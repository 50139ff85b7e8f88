"""All fields that SGLang's classes of a request have are checked: a new one is looked at before a version is added."""

from __future__ import annotations

from sglang.srt.managers import io_struct
from sglang.srt.sampling.sampling_params import SamplingParams

from tessera import request_fields, sampling

FILLED_LATER = {"stop_strs", "stop_regex_strs", "stop_str_max_len", "stop_regex_max_len", "is_normalized"}
"""Fields of the parameters that SGLang computes."""
CHECKED_BY_NAME = {
    "session_params",
    "modalities",
    "text",
    "input_ids",
    "sampling_params",
    "token_ids_logprob",
    "top_logprobs_num",
}
OURS_TO_ANSWER = {"input_embeds", "return_hidden_states", "positional_embed_overrides"}
CHECKED_BY_TYPE = {
    *("mm_hashes", "use_audio_in_video", "return_text_in_logprobs", "return_flat_raw_top_logprobs", "stream"),
    *("return_flat_raw_top_logprobs_b64", "log_metrics", "return_routed_experts", "return_indexer_topk"),
    *("background", "require_reasoning", "custom_labels", "no_logs", "return_bytes", "return_entropy"),
    *("return_prompt_token_ids", "max_dynamic_patch", "min_dynamic_patch", "image_max_dynamic_patch"),
    *("video_max_dynamic_patch", "images_config"),
}
"""Pydantic's check of these is enough: no list of them is per prompt, and no step computes with them."""


def test_sampling_parameters() -> None:
    """Each has its bounds."""
    assert set(sampling.NAMES) == set(SamplingParams.__struct_fields__) - FILLED_LATER


def test_fields() -> None:
    """Each is checked by us, or on purpose by its type alone."""
    ours = {*request_fields.PER_PROMPT, *request_fields.SINGLE, *request_fields.MEDIA, *request_fields.INTERNAL}
    fields = set(io_struct.GenerateReqInput.__dataclass_fields__)
    assert fields == ours | CHECKED_BY_NAME | OURS_TO_ANSWER | CHECKED_BY_TYPE
