"""``return_input_ids`` and ``return_output_ids``: what the model read, and what it wrote."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tessera import carry
from tessera.capability import NEEDS_ROWS_OR_FINGERPRINTS, Answer, Capability, IncomingRequest, Place, Progress
from tessera.rows.reads import PromptIds, Read


class TokenIdFields(msgspec.Struct, frozen=True):
    """How a request asks for the token ids of its prompt and of its output."""

    return_input_ids: Annotated[bool | None, Meta(description="return the prompt's token ids")] = None
    return_output_ids: Annotated[bool | None, Meta(description="return the generated token ids")] = None


class TokenIdOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which ids are shown, and whether only the scheduler knows the whole prompt: it puts a session's turns first."""

    input: bool = False
    output: bool = False
    session: bool = False


class TokenIds(Capability[TokenIdFields, TokenIdOptions]):
    """See `tessera.capability.Capability`."""

    name = "token_ids"
    fields = TokenIdFields
    options = TokenIdOptions
    answers = dict.fromkeys(("input_ids", "output_ids"), Place.CHOICE)
    needs = NEEDS_ROWS_OR_FINGERPRINTS
    collects = True

    def admit(self, fields: TokenIdFields, request: IncomingRequest) -> Sequence[TokenIdOptions | None]:
        """The fields that are true."""
        options = TokenIdOptions(input=bool(fields.return_input_ids), output=bool(fields.return_output_ids))
        return [options] if options.input or options.output else []

    def prepare(self, request: Any, params: Any) -> Any:
        """SGLang keeps the prompt's ids; in a session the scheduler is asked for them."""
        each = carry.each(params)
        wires = [carry.take(own).wires.get(self.name) for own in each]
        if not any(wire is not None and self.from_wire(wire).input for wire in wires):
            return params
        request.return_prompt_token_ids = True
        if request.session_params is None:
            return params
        changed = [
            own if wire is None else carry.with_wire(own, self.name, self.to_wire(_in_session(self.from_wire(wire))))
            for own, wire in zip(each, wires, strict=True)
        ]
        return changed if isinstance(params, list) else changed[0]

    def awaits(self, options: TokenIdOptions) -> bool:
        """Only in a session does the scheduler alone know the prompt's ids."""
        return options.input and options.session

    def reads(self, options: TokenIdOptions, progress: Progress) -> Sequence[Read]:
        """In a session, the prompt's."""
        return (PromptIds(),) if self.awaits(options) and not progress.running else ()

    async def respond(self, options: TokenIdOptions, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """The scheduler may have cut a prompt (--allow-auto-truncate)."""
        found: dict[str, Any] = {}
        if options.input and options.session:
            found["input_ids"] = values[0] if values else None
        elif options.input:
            found["input_ids"] = answer.prompt_ids and answer.prompt_ids[: answer.meta.get("prompt_tokens")]
        if options.output:
            found["output_ids"] = list(answer.output_ids)
        return found

    def without(self, options: TokenIdOptions, values: Sequence[Any], answer: Answer) -> dict[str, Any]:
        """The same as with rows: ids need none."""
        output = {"output_ids": list(answer.output_ids)} if options.output else {}
        return {"input_ids": values[0] if values else None} | output

    def sent(self, options: TokenIdOptions) -> dict[str, Any]:
        """The fields that are true."""
        return {f"return_{kind}_ids": True for kind in ("input", "output") if getattr(options, kind)}


def _in_session(options: TokenIdOptions) -> TokenIdOptions:
    return msgspec.structs.replace(options, session=True)
