"""SGLang's request in a scheduler (``Req``)."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ReqKvInfo

if TYPE_CHECKING:
    from sglang.srt.session.session_controller import Session

if "req_pool_idx" in ReqKvInfo.__dataclass_fields__:  # since 0.5.18

    def row_of(req: Req) -> int:
        """Its row in ``req_to_token``, while it owns one."""
        held: ReqKvInfo = req.kv
        row: int = held.req_pool_idx
        return row

    def committed(req: Req) -> int:
        """How many of its tokens are in the KV cache, as the host knows it: without those of the running step."""
        held: ReqKvInfo = req.kv
        tokens: int = held.kv_committed_len
        return tokens

    def committed_fields(tokens: int) -> dict[str, Any]:
        """What `committed` reads of a placeholder with so many tokens, by name."""
        return {"kv": SimpleNamespace(kv_committed_len=tokens)}

else:

    def row_of(req: Req) -> int:
        """Its row in ``req_to_token``, while it owns one."""
        row: int = req.req_pool_idx
        return row

    def committed(req: Req) -> int:
        """How many of its tokens are in the KV cache, as the host knows it: without those of the running step."""
        tokens: int = req.kv_committed_len
        return tokens

    def committed_fields(tokens: int) -> dict[str, Any]:
        """What `committed` reads of a placeholder with so many tokens, by name."""
        return {"kv_committed_len": tokens}


def prompt_ids(req: Req) -> array[int]:
    """The prompt's token ids, as the prefix cache knows them: keys stand where vectors are injected."""
    ids: array[int] = req.origin_input_ids
    return ids


def own_prompt_ids(req: Req) -> array[int]:
    """`prompt_ids`, made a copy of its own: ``origin_input_ids_unpadded`` keeps the original."""
    req.origin_input_ids = req.origin_input_ids[:]
    return prompt_ids(req)


def prefilled_ids(req: Req) -> array[int]:
    """The token ids that are prefilled: of the prompt and, after a retraction, of what was generated."""
    ids: array[int] = req.full_untruncated_fill_ids
    return ids


def output_ids(req: Req) -> array[int]:
    """The token ids that were generated so far."""
    ids: array[int] = req.output_ids
    return ids


def output_tokens(req: Req) -> int:
    """The number of tokens that were generated so far: all but the last have a row."""
    return len(output_ids(req))


def has_session(req: Req) -> bool:
    """Whether it goes on with an earlier request's prompt and answer."""
    return req.session is not None


def keeping_session(req: Req) -> Session | None:
    """The session whose slots it goes on with, and leaves to the next turn: of ``--enable-streaming-session``."""
    session: Session | None = req.session
    return session if session is not None and session.streaming else None


def has_turns(session: Session) -> bool:
    """Whether a turn has ended, and left its slots."""
    return bool(session.req_nodes)


def cache_key(req: Req) -> str | None:
    """What divides the prefix cache beside the tokens."""
    key: str | None = req.extra_key
    return key


def set_cache_key(req: Req, key: str | None) -> None:
    """Set the key under which it finds and leaves prefixes. Call it while the request owns no slots."""
    req.extra_key = key


def wants_only_rows(req: Req) -> bool:
    """Whether it asks for nothing beside its answer and rows, nor for a place in a queue."""
    reported = req.return_logprob or req.return_hidden_states or req.return_routed_experts or req.return_indexer_topk
    embeds = req.input_embeds or req.multimodal_inputs or req.positional_embed_overrides
    more = req.return_sampling_mask or req.session_id or req.priority
    return not (reported or embeds or more or has_session(req))


def note_cached(req: Req, tokens: int) -> None:
    """Report so many of its prompt's tokens as cached."""
    req.cached_tokens = tokens


def answered_tokens(req: Req) -> int:
    """How many tokens the answer of a finished request has, through the stop."""
    return len(req.output_ids_through_stop)


def is_refused(req: Req) -> bool:
    """Whether its answer is an error of SGLang's. Aborted on demand, a request keeps the tokens that it has."""
    reason: FINISH_ABORT | Any = req.finished_reason
    return isinstance(reason, FINISH_ABORT) and reason.status_code is not None


def is_prefilled(req: Req) -> bool:
    """Whether no chunk of its prompt is left to compute."""
    return req.inflight_middle_chunks <= 0 and not is_retracted(req)


def is_retracted(req: Req) -> bool:
    """Whether it had to give its slots back, and waits for new ones."""
    return bool(req.is_retracted)


def retractions(req: Req) -> int:
    """How often it had to give its slots back."""
    count: int = req.retraction_count
    return count


if hasattr(Req, "set_extend_range"):  # up to 0.5.20

    def extend_to(req: Req, end: int) -> None:
        """Have the next forward compute its tokens up to this one, from the first."""
        req.set_extend_range(0, end)

else:

    def extend_to(req: Req, end: int) -> None:
        """Have the next forward compute its tokens up to this one: without a cached prefix, from the first."""
        req.extend_end = end
