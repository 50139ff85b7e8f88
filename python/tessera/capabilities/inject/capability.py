"""``input_embed_overrides``, ``input_embeds`` and ``input_embeds_b64``: vectors in place of embeddings of a prompt."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from tessera import carry, config
from tessera.capabilities.inject import admission
from tessera.capabilities.inject import refusals as own_refusals
from tessera.capabilities.inject.matrices import BASE64_FIELD, LIST_FIELD
from tessera.capabilities.inject.options import FIELD, InjectFields
from tessera.capabilities.inject.pending import INJECTED, NAME, Pending, Prompts, overrides_of
from tessera.capability import Answer, Capability, IncomingRequest, Place
from tessera.errors import BadRequest
from tessera.metrics import Counter
from tessera.schema_parts import integer
from tessera.telemetry import timed

PROMPTS = Counter("injected_prompts_total", "Prompts with injected vectors.")
VECTORS = Counter("injected_vectors_total", "Vectors injected into prompts.")
DECODE = "decode_vectors"


class Inject(Capability[InjectFields, str]):
    """See `tessera.capability.Capability`. Its option is the text of an `Injection`."""

    name = NAME
    fields = InjectFields
    options = str
    answers = {INJECTED: Place.CHOICE}  # noqa: RUF012 - declared so in the base
    needs = ""
    hooked = True
    counters = (PROMPTS, VECTORS)
    work = (DECODE,)
    switch = own_refusals.SWITCH
    refusals = own_refusals.REFUSALS
    beside_state = own_refusals.BESIDE_STATE
    environment = own_refusals.ENVIRONMENT

    def to_wire(self, options: str) -> str:
        return options

    def from_wire(self, wire: str) -> str:
        return wire

    def check_body(self, body: Mapping[str, Any]) -> None:
        """Matrices replace prompts, so OpenAI's routes do not take them."""
        for name in (LIST_FIELD, BASE64_FIELD):
            if body.get(name) is not None:
                raise BadRequest(name, body[name], f"nothing on this route: use {FIELD} here, or /generate")

    def options_of(self, request: IncomingRequest) -> Sequence[str | None]:
        """Whatever their values are, the fields are refused on a server without injection."""
        if config.injection is not None:
            for field in (FIELD, BASE64_FIELD):
                admission.check_enabled(f"{request.where}{field}", request.fields.get(field), config.injection)
        return super().options_of(request)

    def admit(self, fields: InjectFields, request: IncomingRequest) -> Sequence[str | None]:
        """Decode vectors; where they go is known later."""
        model = config.injection
        if model is None or not model.enabled:
            return []
        with timed(DECODE):
            found = admission.decode_overrides(fields.input_embed_overrides, model, f"{request.where}{FIELD}")
        if found is not None:
            request.live.state[NAME] = Pending(found)
        matrices = fields.input_embeds is not None or fields.input_embeds_b64 is not None
        return [""] if found is not None or matrices else []

    def prepare(self, request: Any, params: Any) -> Any:
        """Matrices become prompts; each prompt gets what is its own."""
        model = config.injection
        if model is None:
            return params
        live = carry.live(params)
        prompts = Prompts(request.text, request.input_ids, request.input_embeds, request.input_embeds_b64)
        if not model.enabled:
            request.input_embeds = admission.without_injection(prompts, model).input_embeds
            return params
        if carry.uses(params, self.name) and (request.session_params is not None or request.session_id is not None):
            raise BadRequest(
                "session_params", request.session_params or request.session_id, "no session beside vectors"
            )
        matrices = prompts.input_embeds is not None or prompts.input_embeds_b64 is not None
        try:
            with timed(DECODE) if matrices else nullcontext():
                prompts, params = admission.place_vectors(prompts, params, model, live)
            admission.check_copies(prompts, params, model)
        except BadRequest as error:
            carry.note_error(params, error)  # an OpenAI route makes a 500 of what is raised here
            raise
        request.input_ids, request.input_embeds, request.input_embeds_b64 = (
            prompts.input_ids,
            prompts.input_embeds,
            None,
        )
        return params

    def awaits(self, options: str) -> bool:
        """The main process knows how many there were."""
        return False

    async def respond(self, options: str, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """How many vectors were injected: what a proxy dropped is missing there."""
        overrides = overrides_of(answer.params)
        return {} if overrides is None else {INJECTED: overrides.injected}

    def sent(self, options: str) -> dict[str, Any]:
        """Vectors are left out: only that there are some is said."""
        return {FIELD: "(vectors)"}

    def complete_schema(
        self, schemas: dict[str, Any], hidden_size: int | None, vocabulary: int | None, *, adapters: bool
    ) -> None:
        """Add what types do not say, and H."""
        schemas["TesseraOverride"]["anyOf"] = [{"required": ["positions"]}, {"required": ["token"]}]
        schemas["TesseraNeighbours"]["minProperties"] = 1
        width = integer(1, None) if hidden_size is None else {"const": hidden_size}
        schemas["TesseraMatrix"]["properties"]["shape"]["prefixItems"] = [integer(1, None), width]
