"""The fields of each route, and values that are nearly right for them."""

from __future__ import annotations

from typing import Any

from hostile.values import (
    ANYTHING,
    FLAGS,
    IDS,
    INTS,
    NAN,
    NUMBERS,
    PROMPTS,
    SAMPLING,
    SCHEMAS,
    STOCK,
    TEXT_PROMPTS,
    TEXTS,
    VECTORS,
)

NATIVE: dict[str, tuple[Any, ...]] = {
    "text": TEXT_PROMPTS,
    "input_ids": PROMPTS,
    "input_embeds": VECTORS,
    "input_embeds_b64": VECTORS,
    "positional_embed_overrides": VECTORS,
    "image_data": (None, "a", ["a"], [None], [], [["a"]], {"a": 1}),
    "video_data": (None, "a", ["a"], [None]),
    "audio_data": (None, "a", ["a"], [None]),
    "mm_hashes": TEXTS,
    "sampling_params": (None, {}, [], [{}], [{}, {}], [{"n": 2}, {}], [None], "a", 5, {"max_new_tokens": 1}),
    "return_logprob": (*FLAGS, [True, False], []),
    "logprob_start_len": (*INTS, -2, 4, 2**63, [0], [0, 0], [-5], [None]),
    "top_logprobs_num": (*INTS, -2, 5000, 2**63, [1], [1, 2], [None]),
    "token_ids_logprob": IDS,
    "return_sampling_mask": FLAGS,
    "return_text_in_logprobs": FLAGS,
    "return_flat_raw_top_logprobs": FLAGS,
    "return_flat_raw_top_logprobs_b64": FLAGS,
    "log_metrics": FLAGS,
    "return_indexer_topk": FLAGS,
    "modalities": (None, [], ["image"], ["video"], ["a"], [None]),
    "lora_id": (None, "a", ["a"]),
    "bootstrap_pair_key": TEXTS,
    "decode_tp_size": (*INTS, [1]),
    "routing_key": TEXTS,
    "conversation_id": TEXTS,
    "http_worker_ipc": (None, "ipc:///tmp/no-such-socket", "a"),
    "background": FLAGS,
    "require_reasoning": FLAGS,
    "max_thinking_tokens": INTS,
    "no_logs": FLAGS,
    "return_bytes": FLAGS,
    "return_entropy": FLAGS,
    "return_prompt_token_ids": FLAGS,
    "external_trace_header": (None, {}, {"traceparent": "x"}),
    "received_time": (None, 0, 1.5, NAN, "a"),
    "need_wait_for_mm_inputs": FLAGS,
    "num_items_assigned": (None, {}, {"IMAGE": [1]}, {"a": [1]}),
    "mm_data_mooncake": (None, [], [1], ["a"]),
    "encoder_urls": (None, [], ["http://127.0.0.1:1"]),
    "max_dynamic_patch": INTS,
    "min_dynamic_patch": INTS,
    "multi_item_delimiter_indices": (None, [], [0], [1, 2], [[0]], [[0], [1]], [-1], [9]),
    "use_audio_in_video": FLAGS,
    "no_such_field": ANYTHING,
}
"""Fields of ``/generate`` alone."""

OPENAI: dict[str, tuple[Any, ...]] = {
    "model": ("tiny", "", "tiny:adapter", 5, None),
    "n": SAMPLING["n"],
    "logit_bias": SAMPLING["logit_bias"],
    "seed": SAMPLING["sampling_seed"],
    "stop": TEXTS,
    "min_tokens": INTS,
    "stream_options": (None, {}, {"include_usage": True}, {"include_usage": 5}, "a"),
    "response_format": (
        *(None, {}, {"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"type": "structural_tag"}),
        *({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 5}}}, {"type": 5}, "json_object"),
    ),
    "user": TEXTS,
    "cache_salt": TEXTS,
    "data_parallel_rank": INTS,
    "return_cached_tokens_details": FLAGS,
    "return_token_ids": FLAGS,
    **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k", "min_p", "frequency_penalty")},
    **{name: SAMPLING[name] for name in ("presence_penalty", "repetition_penalty", "stop_token_ids", "stop_regex")},
    **{name: SAMPLING[name] for name in ("regex", "ebnf", "ignore_eos", "no_stop_trim", "skip_special_tokens")},
    "custom_params": SAMPLING["custom_params"],
}

MESSAGES: tuple[Any, ...] = (
    *([{"role": "user", "content": "def"}], [], [{}], [{"role": "user"}], [{"role": "x", "content": "a"}], "a", None),
    *([{"role": "assistant", "content": "a"}], [{"role": "user", "content": ""}], [{"role": "user", "content": [1]}]),
    *([{"role": "tool", "content": "a"}], [{"role": "system", "content": "a"}], [None], {"role": "user"}),
    [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]}],
)
TOOLS: tuple[Any, ...] = (
    *(None, [], [{}], [{"type": "function", "function": {"name": "f"}}], [{"type": "x"}], "a"),
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}, "strict": True}}],
)
CHAT = {
    "messages": MESSAGES,
    "input_ids": PROMPTS,
    "logprobs": FLAGS,
    "top_logprobs": INTS,
    "max_tokens": SAMPLING["max_new_tokens"],
    "max_completion_tokens": SAMPLING["max_new_tokens"],
    "tools": TOOLS,
    "tool_choice": ("auto", "none", "required", {"type": "function", "function": {"name": "f"}}, "x", {}),
    "reasoning_effort": (None, "low", "max", 0.5, 2.0, "x"),
    "chat_template_kwargs": (None, {}, {"a": 1}, {"messages": 5}, {"tokenize": True}),
    "continue_final_message": FLAGS,
    "return_prompt_token_ids": FLAGS,
    "return_meta_info": FLAGS,
}
COMPLETIONS = {
    "prompt": (*PROMPTS, *TEXT_PROMPTS),
    "best_of": INTS,
    "echo": FLAGS,
    "logprobs": INTS,
    "max_tokens": SAMPLING["max_new_tokens"],
    "suffix": TEXTS,
    "json_schema": SCHEMAS,
}
EMBEDDINGS = {
    "input": (*PROMPTS, *TEXT_PROMPTS),
    "model": OPENAI["model"],
    "dimensions": INTS,
    "encoding_format": ("float", "base64", "x", None),
    "pooling": ("mean", "last", "x", None),
    "normalize": FLAGS,
    "user": TEXTS,
}
ENCODE = {"text": TEXT_PROMPTS, "input_ids": PROMPTS, "hidden_size": INTS, "rid": STOCK["rid"]}
CLAIMS = (
    *([], [{}], [None], {}, "a", [{"input_ids": [5], "output_ids": [6], "fingerprints": ["/9k="]}]),
    *([{"input_ids": ids, "output_ids": [6], "fingerprints": ["/9k="]}] for ids in PROMPTS),
    *([{"input_ids": [5], "output_ids": ids, "fingerprints": ["/9k="]}] for ids in PROMPTS),
    *([{"input_ids": [5], "output_ids": [], "fingerprints": prints}] for prints in (["/9k="], [], None, "a", [5])),
)
RESPONSES = {
    "input": (*TEXT_PROMPTS, *MESSAGES),
    "model": OPENAI["model"],
    "max_output_tokens": SAMPLING["max_new_tokens"],
    "instructions": TEXTS,
    "background": FLAGS,
    "store": FLAGS,
    "stream": FLAGS,
    "top_logprobs": INTS,
    "previous_response_id": TEXTS,
    "request_id": TEXTS,
    "tools": TOOLS,
    "tool_choice": CHAT["tool_choice"],
    "priority": STOCK["priority"],
    "extra_key": TEXTS,
    "stop": TEXTS,
    "reasoning": (None, {}, {"effort": "low"}, {"effort": 5}),
    **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k", "min_p", "frequency_penalty")},
}
ANTHROPIC = {
    "messages": MESSAGES,
    "max_tokens": SAMPLING["max_new_tokens"],
    "model": OPENAI["model"],
    "system": (*TEXTS, [{"type": "text", "text": "a"}]),
    "stop_sequences": TEXTS,
    "stream": FLAGS,
    "temperature": NUMBERS,
    "top_p": NUMBERS,
    "top_k": INTS,
    "tools": (None, [], [{"name": "f", "input_schema": {"type": "object"}}], [{"name": "f"}], [{}]),
    "tool_choice": (None, {"type": "auto"}, {"type": "tool", "name": "f"}, {"type": "x"}),
    "metadata": (None, {}, {"user_id": "a"}),
    "thinking": (None, {"type": "enabled", "budget_tokens": 1}, {"type": "x"}),
}
OLLAMA_OPTIONS = {
    "num_predict": SAMPLING["max_new_tokens"],
    "stop": TEXTS,
    "seed": SAMPLING["sampling_seed"],
    **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k", "min_p", "frequency_penalty")},
}
SCORE = {
    "query": (*TEXT_PROMPTS, [5, 6]),
    "items": (*TEXT_PROMPTS, [[5], [6]], [[5], []]),
    "label_token_ids": IDS,
    "apply_softmax": FLAGS,
    "item_first": FLAGS,
    "embed_override_token_id": INTS,
    "query_embed_overrides": VECTORS,
    "item_embed_overrides": VECTORS,
    "model": OPENAI["model"],
}
SESSIONS = {
    "capacity_of_str_len": INTS,
    "session_id": (*TEXTS, "s", "t"),
    "streaming": FLAGS,
    "timeout": (None, 1, 0.5, -1, NAN, "a"),
}
PARSING = {
    "text": TEXT_PROMPTS,
    "tools": TOOLS,
    "tool_call_parser": ("qwen25", "llama3", "x", None, 5),
    "reasoning_parser": ("deepseek-r1", "x", None, 5),
    "return_blocks": FLAGS,
}
