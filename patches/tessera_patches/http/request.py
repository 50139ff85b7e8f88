"""The request: SGLang's ``GenerateReqInput`` with our fields."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, make_dataclass
from typing import Any

from pydantic import model_validator
from sglang.srt.managers import io_struct
from sglang.srt.managers.embed_types import PositionalEmbeds

from tessera import admission, carry, config, request_fields
from tessera.capabilities import registry
from tessera.capabilities.inject.options import FIELD
from tessera.capabilities.inject.pending import Prompts, count
from tessera.errors import BadRequest, BadValue, Described
from tessera.http import adapters
from tessera.prompts import check_prompts, private_cache_key
from tessera.request_fields import refuse_internal
from tessera_patches.core import calls
from tessera_patches.engine.options import later_parameters
from tessera_patches.http import offline
from tessera_patches.rows import answers

_LATER = later_parameters()
_SCORE_FIELDS = "query_embed_overrides, item_embed_overrides"


_STOCK = vars(io_struct.GenerateReqInput())
_UNKNOWN = {name: default for name, default in _STOCK.items() if name not in request_fields.KNOWN}
"""SGLang's fields that are refused, each with its default."""
_OURS = [(name, Any, field(default=default)) for name, default in registry.declared_fields(openai=False)]
"""Our fields, SGLang's among them: not validated by pydantic, which takes seconds for a matrix."""
_Fields = make_dataclass("_Fields", _OURS, bases=(io_struct.GenerateReqInput,))


@dataclass
class GenerateReqInput(_Fields):  # type: ignore[valid-type, misc]
    """REPLACEs ``io_struct.GenerateReqInput``. FastAPI builds it from the body, so a bad value never gets further.

    Its own fields are those of `tessera.capabilities.registry`.
    """

    @model_validator(mode="before")
    @classmethod
    def _refuse_internal(cls, body: Any) -> Any:
        """Refuse internal fields in a client's body. SGLang's own requests do not come here."""
        if config.active.guarded:
            refuse_internal(body)
        return body

    def __post_init__(self) -> None:
        calls.count(GenerateReqInput)
        for name, value in offline.pop_keywords().items():
            setattr(self, name, value)
        settings = config.active
        ids: Any = self.input_ids  # type: ignore[has-type]
        if settings.guarded and isinstance(ids, Mapping):  # SGLang's /api/chat takes the tokenizer's object for a list
            self.input_ids = ids["input_ids"]
        if settings.guarded:
            self._leave_out_empty_media()
        try:
            self._admit()
            if settings.guarded:  # now that vectors have become prompts
                check_prompts("input_ids", self.input_ids, settings.vocabulary)
                request_fields.refuse_unknown(self, _UNKNOWN)
                request_fields.check(
                    self, settings.vocabulary, settings.context, grammars=settings.grammars, later=_LATER
                )
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
        params: Any = self.sampling_params  # type: ignore[has-type]
        fields = {name: getattr(self, name) for name, _, _ in _OURS}
        self.tessera_live: carry.Live | None
        if self.text is not None:
            admission.extend("text", self.text, {**fields, "output_ids": None})
        self.input_ids, tail = admission.extend("input_ids", self.input_ids, fields)
        self.output_ids = None
        if not any(carry.take(own) is not carry.NOTHING for own in carry.each(params)):  # else admitted before
            for name in registry.LISTED if settings.rows else ():
                request_fields.one_each(name, fields[name], self._prompts())
            params, _live = admission.admit(fields, params, admission.server(), tail=tail)
        self.tessera_live = carry.live(params)  # held as long as this is
        if _has_stock_overrides(self.positional_embed_overrides):
            self.extra_key = private_cache_key(self.extra_key)  # type: ignore[has-type]
        for capability in registry.CAPABILITIES:
            params = capability.prepare(self, params)
        if settings.rows or settings.inject:
            adapters.check_batch(self.lora_path, self._prompts())
        self.sampling_params = params
        answers.check_at_edge(self)

    def _prompts(self) -> int | None:
        """How many there are; None for one that is not in a list."""
        ids: Any = self.input_ids
        embeds = self.input_embeds
        if isinstance(self.input_embeds_b64, list):
            return len(self.input_embeds_b64)
        if self.text is None and ids is None and embeds:  # without injection; with it there are ids by now
            return len(embeds) if isinstance(embeds[0][0], list) else None
        return count(Prompts(self.text, ids))


def check_stock_fields(original: Callable[..., str | None], body: Any) -> str | None:
    """AROUND ``generate_contract_error``: a body without the fields that `GenerateReqInput` has checked."""
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if name != "return_hidden_states"}
    return original(body)


def _has_stock_overrides(value: Any) -> bool:
    """SGLang's own channel takes nothing from a client, and nothing at all where KV and rows must be those of the ids.

    It skips the prefix cache on the way in, but puts the KV there under the plain token ids, for any later request.

    Returns:
        Whether it is used, with one of our features on.

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
