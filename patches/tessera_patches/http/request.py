"""The request: SGLang's ``GenerateReqInput`` with our fields."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pydantic import model_validator
from sglang.srt.managers import io_struct
from sglang.srt.managers.embed_types import PositionalEmbeds

from tessera import config, request_fields
from tessera.admission import READ_KEY, admit_embedding, admit_states, asked, check_prompts, folded
from tessera.errors import BadRequest, BadValue, Described
from tessera.fingerprint import admission
from tessera.http import adapters
from tessera.http.claims import joined
from tessera.inject.admission import admit
from tessera.inject.carry import Prompts, count
from tessera.inject.options import FIELD
from tessera.request_fields import refuse_internal
from tessera.states.options import FIELD as STATES_FIELD
from tessera_patches.rows import answers

_SCORE_FIELDS = "query_embed_overrides, item_embed_overrides"


@dataclass
class GenerateReqInput(io_struct.GenerateReqInput):
    """REPLACEs ``io_struct.GenerateReqInput``. FastAPI builds it from the body, so a bad value never gets further.

    Attributes:
        return_embedding: true, false, or the object that `tessera.embed.options.EmbedOptions` describes.
        return_hidden_states: SGLang's field; on a server that keeps rows also an object with over and positions,
            and answered by us, so SGLang itself sees false.
        hidden_states_format: `tessera.states.options.Format`.
        input_embeds: SGLang's field, a matrix for each prompt; not validated by pydantic, which takes seconds.
        input_embeds_b64: the same as base64: `tessera.inject.matrices`.
        input_embed_overrides: vectors for some positions: `tessera.inject.options`.
        return_toploc_fingerprints: whether the answer has fingerprints.
        toploc_verification_fingerprint_to_validate: fingerprints to compare with this prompt: the last, or a list.
        toploc_nonce: `tessera.fingerprint.options.FingerprintOptions.nonce`.
        output_ids: with fingerprints to compare, what was generated for the prompt ``input_ids``.
        return_input_ids: whether the answer has the prompt's token ids.
        return_output_ids: whether ``meta_info`` has all generated token ids.
        return_row_hashes: whether it has hashes of the rows: `tessera.fingerprint.exact`.
    """

    return_embedding: Any = None
    return_hidden_states: Any = False
    hidden_states_format: Any = None
    input_embeds: Any = None
    input_embeds_b64: Any = None
    input_embed_overrides: Any = None
    return_toploc_fingerprints: Any = None
    toploc_verification_fingerprint_to_validate: Any = None
    toploc_nonce: Any = None
    output_ids: Any = None
    return_input_ids: Any = None
    return_output_ids: Any = None
    return_row_hashes: Any = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_internal(cls, body: Any) -> Any:
        """What FastAPI read of a client's body; requests that SGLang's own code makes do not come this way."""
        if config.active.guarded:
            refuse_internal(body)
        return body

    def __post_init__(self) -> None:
        settings = config.active
        ids: Any = self.input_ids  # type: ignore[has-type]  # inherited from Any
        if settings.guarded and isinstance(ids, Mapping):  # SGLang's /api/chat takes the tokenizer's object for a list
            self.input_ids = ids["input_ids"]
        if settings.guarded:
            self._leave_out_empty_media()
        try:
            self._admit()
            if settings.guarded:  # now that vectors have become prompts
                check_prompts("input_ids", self.input_ids, settings.vocabulary)
                request_fields.check(self, settings.vocabulary, settings.context, grammars=settings.grammars)
                self._try_stream()
        except BadRequest as error:
            if settings.guarded:
                raise BadValue(error) from error
            raise

    def _leave_out_empty_media(self) -> None:
        """SGLang looks into an empty list, or one of modalities of nothing, for each sample of a prompt."""
        for name in request_fields.MEDIA:
            if getattr(self, name) == []:
                setattr(self, name, None)
        if not any(getattr(self, name) for name in request_fields.MEDIA):
            self.modalities = None

    def _try_stream(self) -> None:
        """What SGLang refuses of a stream while it normalizes the request, it refuses when the status is sent.

        Its background task, which aborts the request of a client that left, fails then, and 2 s later closes the
        connection, with whatever request of a proxy's is on it.
        """
        if self.stream:
            copy(self).normalize_batch_and_arguments()

    def _admit(self) -> None:
        settings = config.active
        params: Any = self.sampling_params  # type: ignore[has-type]  # inherited from Any
        params = self._admit_injection(params)
        params = admit_embedding(self.return_embedding, params, enabled=settings.rows, hidden_size=settings.hidden_size)
        if settings.rows or settings.inject:
            adapters.check_batch(self.lora_path, self._prompts())
        if settings.rows:
            request_fields.one_each(STATES_FIELD, self.return_hidden_states, self._prompts())
            params = admit_states(self.return_hidden_states, self.hidden_states_format, params)
            self.return_hidden_states = False
        self.sampling_params = self._admit_toploc(params)
        answers.check_at_edge(self)

    def _prompts(self) -> int | None:
        """How many there are; None for one that is not in a list."""
        ids: Any = self.input_ids
        embeds = self.input_embeds
        if self.text is None and ids is None and embeds:  # without injection; with it there are ids by now
            return len(embeds) if isinstance(embeds[0][0], list) else None
        return count(Prompts(self.text, ids))

    def _admit_toploc(self, params: Any) -> Any:
        claim = self.toploc_verification_fingerprint_to_validate
        ids: Any = self.input_ids
        joined("text", self.text, None, claim)
        self.input_ids, tail = joined("input_ids", ids, self.output_ids, claim)
        self.output_ids = None
        fields = admission.Fields(*(getattr(self, name) for name in admission.Fields._fields))
        params = admission.admit(fields, params, admission.server(), tail=tail)
        wanted = [asked(one) for one in (params if isinstance(params, list) else [params])]
        if any("input" in one.ids for one in wanted):
            self.return_prompt_token_ids = True
            # Earlier turns are put before the ids of this one in the scheduler.
            params = params if self.session_params is None else folded(READ_KEY, "1", params)
        if any(one.hashes for one in wanted):
            self.extra_key = _alone(self.extra_key)  # type: ignore[has-type]  # inherited from Any
        return params

    def _admit_injection(self, params: Any) -> Any:
        if _has_stock_overrides(self.positional_embed_overrides):
            self.extra_key = _alone(self.extra_key)
        if config.injection is None:
            return params
        prompts = Prompts(
            self.text,
            self.input_ids,
            self.input_embeds,
            self.input_embeds_b64,
            self.input_embed_overrides,
        )
        if prompts.injects and (self.session_params is not None or self.session_id is not None):
            raise BadRequest("session_params", self.session_params or self.session_id, "no session beside vectors")
        prompts, params = admit(prompts, params, config.injection)
        self.input_ids, self.input_embeds = prompts.input_ids, prompts.input_embeds
        self.input_embeds_b64 = self.input_embed_overrides = None
        return params


def _alone(extra_key: Any) -> Any:
    """A part of the prefix cache for one request, which nobody else finds.

    What another one decoded has other bits than what is prefilled; what SGLang's own vectors gave is not the ids' own.
    """
    own = uuid4().hex
    return [f"{key}{own}" for key in extra_key] if isinstance(extra_key, list) else f"{extra_key or ''}{own}"


def _has_stock_overrides(value: Any) -> bool:
    """SGLang's own channel takes nothing from a client, and nothing at all where KV and rows must be those of the ids.

    It skips the prefix cache on the way in, but puts the KV there under the plain token ids, for any later request.

    Returns:
        Whether it is used, with a feature of ours on.

    Raises:
        BadRequest: a client wrote the field itself.
        ValueError: /v1/score has filled it. That route makes a 400 of this, and a 500 of any other error.
    """
    given = [own for own in (value if isinstance(value, list) else [value]) if own is not None]
    if value is not None and not (given and all(isinstance(own, PositionalEmbeds) for own in given)):  # JSON gives none
        raise BadRequest("positional_embed_overrides", value, f"nothing; use {FIELD}")
    if given and (config.active.rows or config.active.inject):
        count = sum(len(own.positions) for own in given)
        raise ValueError(
            str(BadRequest(_SCORE_FIELDS, Described(f"{count} vectors"), f"nothing; use {FIELD} on /generate"))
        )
    return bool(given and config.active.features())
