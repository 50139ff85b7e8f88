"""The fields of a request beside its prompts' sampling parameters: how many of each, type and bounds.

SGLang takes a list with a value for each prompt for most of them. A list beside one prompt, or one of another length,
is a 500 there, or reaches its scheduler, which ends with the server.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from tessera import sampling
from tessera.errors import BadRequest, Described, TooLarge
from tessera.fields import boolean, integer, known_keys, text
from tessera.limits import MAX_LOGPROBS, MAX_SAMPLES
from tessera.sampling import DEFAULT_NEW_TOKENS, INT32, INT64, Check, token_ids

INTERNAL = (
    *("lora_id", "http_worker_ipc", "received_time", "external_trace_header", "multi_item_delimiter_indices"),
    *("need_wait_for_mm_inputs", "num_items_assigned", "mm_data_mooncake", "encoder_urls"),
)
"""Fields that SGLang's main process fills for itself; over HTTP they would go to the scheduler as they come."""

_count = partial(integer, least=0, most=INT32)

RESERVED_KEY = "\0"
"""How values of ``extra_key`` begin that the scheduler makes itself."""


def _key(field: str, value: object) -> None:
    if text(field, value).startswith(RESERVED_KEY):
        raise BadRequest(field, value, "a text that does not begin with U+0000")


PER_PROMPT: Mapping[str, Check] = {
    "rid": text,
    "return_logprob": boolean,
    "logprob_start_len": partial(integer, least=-1, most=INT32),
    "return_sampling_mask": boolean,
    "lora_path": text,
    "custom_logit_processor": text,
    "extra_key": _key,
    "bootstrap_host": text,
    "bootstrap_port": partial(integer, least=0, most=65_535),
    "bootstrap_room": partial(integer, least=0, most=INT64),
    "bootstrap_pair_key": text,
    "decode_tp_size": partial(integer, least=1, most=INT32),
}
"""Fields with one value for all prompts, or a list with one for each."""
SINGLE: Mapping[str, Check] = {
    "session_id": text,
    "routed_dp_rank": _count,
    "disagg_prefill_dp_rank": _count,
    "priority": partial(integer, least=-INT64, most=INT64),
    "routed_experts_start_len": _count,
    "max_thinking_tokens": _count,
    "routing_key": text,
    "conversation_id": text,
}
"""Fields with one value for the whole request."""
SESSION: Mapping[str, Check] = {
    "id": text,
    "rid": text,
    "offset": partial(integer, least=-INT32, most=INT32),  # an end of a slice: -1 is all but the last token
    "replace": boolean,
    "drop_previous_output": boolean,
}
"""Keys of ``session_params``."""
MEDIA = ("image_data", "video_data", "audio_data")
BY_NAME = {
    *("session_params", "modalities", "text", "input_ids", "sampling_params"),
    *("token_ids_logprob", "top_logprobs_num"),
}
"""Fields with a check of their own below, or in `tessera.prompts`."""
ADMITTED = {"input_embeds", "return_hidden_states", "positional_embed_overrides"}
"""Fields that `tessera.admission` or a capability answers."""
BY_TYPE = {
    *("mm_hashes", "use_audio_in_video", "return_text_in_logprobs", "return_flat_raw_top_logprobs", "stream"),
    *("return_flat_raw_top_logprobs_b64", "log_metrics", "return_routed_experts", "return_indexer_topk"),
    *("background", "require_reasoning", "custom_labels", "no_logs", "return_bytes", "return_entropy"),
    *("return_prompt_token_ids", "max_dynamic_patch", "min_dynamic_patch", "image_max_dynamic_patch"),
    *("video_max_dynamic_patch", "images_config", "mm_content_hashes", "video_config", "mm_processor_kwargs"),
    *("sampling_logprobs_mode", "return_flat_raw_output_top_logprobs", "data_parallel_rank", "cache_salt"),
}
"""Pydantic's check of these is enough: no list of them is per prompt, and no step computes with them."""
KNOWN = frozenset({*PER_PROMPT, *SINGLE, *MEDIA, *INTERNAL, *BY_NAME, *ADMITTED, *BY_TYPE})
"""Fields that a request may have; another one is refused."""


def refuse_unknown(request: Any, defaults: Mapping[str, Any]) -> None:
    """Refuse fields that are not `KNOWN`.

    Args:
        request: SGLang's ``GenerateReqInput``.
        defaults: its fields that are not `KNOWN`, each with its default.

    Raises:
        BadRequest: one has another value.
    """
    for name, default in defaults.items():
        if getattr(request, name) != default:
            raise BadRequest(name, getattr(request, name), "nothing: the server does not support it")


def refuse_internal(body: Any) -> None:
    """Refuse `INTERNAL` fields in a client's JSON.

    Raises:
        BadRequest: one has a value.
    """
    for name in INTERNAL if isinstance(body, dict) else ():
        if body.get(name) is not None:
            raise BadRequest(name, body[name], "nothing: the server fills it")


def check(request: Any, vocabulary: int, context: int, *, grammars: bool = True, later: Collection[str] = ()) -> None:
    """Check the fields of SGLang's ``GenerateReqInput``.

    Args:
        request: with its fields as attributes.
        vocabulary: how many token ids the model has; 0 where it is not known.
        context: tokens of a prompt and its answer at most; 0 where it is not known.
        grammars: whether the server survives a grammar.
        later: which of `tessera.sampling.LATER` its SGLang has.

    Raises:
        BadRequest: names the field, its value and what is allowed.
    """
    count = _check_texts(request)
    _check_ids_of_texts(request.text, request.input_ids)
    sampling.check(request.sampling_params, vocabulary, grammars=grammars, later=later)
    one_each("sampling_params", request.sampling_params, count)
    _check_samples(request.sampling_params, count)
    most = vocabulary or INT32
    checks: dict[str, Check] = {**PER_PROMPT, "top_logprobs_num": partial(integer, least=0, most=most)}
    for name, own in checks.items():
        _check_each(name, getattr(request, name), count, own)
    _check_token_ids(request.token_ids_logprob, count, vocabulary)
    _check_logprobs(request, count, context or INT32)
    for name, own in SINGLE.items():
        if (value := getattr(request, name)) is not None:
            own(name, value)
    _check_session(request.session_params)
    for name in (*MEDIA, "modalities") if count is not None else ():
        one_each(name, getattr(request, name) or None, count)


def _check_texts(request: Any) -> int | None:
    """How many prompts; None for a single one. An empty text is refused, unless something else stands for it."""
    prompts = request.text
    if prompts is None:
        ids = request.input_ids if request.input_ids is not None else _matrices(request.input_embeds)
        return len(ids) if isinstance(ids, list) and ids and isinstance(ids[0], list) else None
    if any(getattr(request, name) for name in MEDIA):
        return len(prompts) if isinstance(prompts, list) else None
    if isinstance(prompts, str):
        if not prompts:
            raise BadRequest("text", prompts, "a text that is not empty")
        text("text", prompts)
        return None
    if not isinstance(prompts, list) or not prompts:
        raise BadRequest("text", prompts, "a text, or a list of at least one")
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise BadRequest(f"text[{i}]", prompt, "a text that is not empty")
        text(f"text[{i}]", prompt)
    return len(prompts)


def _check_ids_of_texts(texts: Any, ids: Any) -> None:
    """SGLang runs the ids, but counts the prompts by the texts beside them."""
    if texts is None or not isinstance(ids, list):
        return
    several = bool(ids) and isinstance(ids[0], list)
    if several != isinstance(texts, list) or (several and len(ids) != len(texts)):
        found = f"{len(ids)} prompts" if several else "one prompt"
        allowed = f"one for each of the {len(texts)} texts" if isinstance(texts, list) else "one prompt, as text is"
        raise BadRequest("input_ids", Described(f"{found} beside text"), f"{allowed}; or no text")


def _matrices(embeds: Any) -> Any:
    """A list of as many lists as there are prompts, or nothing for a single one: a matrix has one level less."""
    nested = isinstance(embeds, list) and embeds and isinstance(embeds[0], list) and embeds[0]
    return embeds if nested and isinstance(embeds[0][0], list) else None


def one_each(name: str, value: Any, count: int | None) -> None:
    """Refuse a list that does not have one value for each prompt.

    Args:
        name: the field's.
        value: its value; what is not a list is not looked at.
        count: how many prompts there are; None for a single one that is not in a list.

    Raises:
        BadRequest: it is of another length, or there is a single prompt.
    """
    if isinstance(value, list) and len(value) != count:
        allowed = "one value" if count is None else f"one value, or a list with one for each of the {count} prompts"
        raise BadRequest(name, Described(f"a list of {len(value)}"), allowed)


def _check_samples(params: Any, count: int | None) -> None:
    """SGLang multiplies all fields of the request by n before it looks at any."""
    samples = _samples(params, count)
    if samples > MAX_SAMPLES:
        raise TooLarge(
            "sampling_params.n", Described(f"{samples} samples"), f"prompts times n of at most {MAX_SAMPLES}"
        )


def _samples(params: Any, count: int | None) -> int:
    first = params[0] if isinstance(params, list) else params or {}
    samples: int = (count or 1) * first.get("n", 1)
    return samples


def _check_each(name: str, value: Any, count: int | None, own: Callable[[str, Any], object]) -> None:
    one_each(name, value, count)
    for i, one in enumerate(value if isinstance(value, list) else [value]):
        if one is not None:
            own(f"{name}[{i}]" if isinstance(value, list) else name, one)
        elif isinstance(value, list) and own not in (text, _key):
            raise BadRequest(f"{name}[{i}]", one, "a value for each prompt")


def _check_token_ids(value: Any, count: int | None, vocabulary: int) -> None:
    """``token_ids_logprob``: ids for all prompts, or a list of them for each."""
    name = "token_ids_logprob"
    if not value:
        return
    if not isinstance(value, list) or not isinstance(value[0], list):
        _check_unique_ids(name, _listed(value), vocabulary)
        return
    if count is None:
        raise BadRequest(name, Described(f"a list of {len(value)} lists"), "a flat list of integers")
    one_each(name, value, count)
    for i, ids in enumerate(value):
        _check_unique_ids(f"{name}[{i}]", ids, vocabulary)


def _check_unique_ids(name: str, ids: Any, vocabulary: int) -> None:
    token_ids(name, ids, vocabulary)
    if len(set(ids)) < len(ids):
        raise BadRequest(name, Described(f"{len(ids)} ids, some of them repeated"), "each id once")


def _check_logprobs(request: Any, count: int | None, context: int) -> None:
    """How many of them all tokens of all answers can have; those of prompts are counted where their ids are known."""
    ids, top = request.token_ids_logprob, request.top_logprobs_num
    given = {"token_ids_logprob": _longest(ids), "top_logprobs_num": max(_listed(top), default=0)}
    name = max(given, key=lambda field: given[field])
    limits = [own.get("max_new_tokens", DEFAULT_NEW_TOKENS) for own in _listed(request.sampling_params or {})]
    tokens = max(1, *(context if limit is None else limit for limit in limits))
    if request.logprob_start_len not in (None, -1):
        tokens += _longest(request.input_ids)
    total = given[name] * min(tokens, context) * _samples(request.sampling_params, count)
    if total > MAX_LOGPROBS:
        raise TooLarge(name, Described(f"up to {total} log-probabilities"), f"at most {MAX_LOGPROBS} in all answers")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _longest(ids: Any) -> int:
    """The length of a list of ids, or of the longest of several."""
    listed = _listed(ids)
    return max((len(own) if isinstance(own, list) else len(listed) for own in listed), default=0)


def _check_session(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise BadRequest("session_params", value, "an object")
    known_keys("session_params", value, list(SESSION))
    for key, own in value.items():
        if own is not None:
            SESSION[key](f"session_params.{key}", own)
