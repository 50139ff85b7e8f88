"""What a request asks for, on its way from the HTTP edge to the scheduler: one reserved key of its sampling parameters.

SGLang carries ``sampling_params.custom_params`` to the scheduler in each of its IPC formats, as far as the values are
texts, numbers, or objects of these. Under `KEY` there is one object: the request's token, and one text for each
capability that it uses.

What cannot be text, vectors above all, stays in the main process: `live` finds it by the token.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from tessera.errors import BadRequest, TesseraError

KEY = "tessera"
"""The key in ``custom_params``. No client can write it: its object has a token that begins with a secret."""
TOKEN = "token"  # noqa: S105 - a name, not a secret
PROMPT = "prompt"
"""The index of the prompt in its HTTP request, where prompts differ in what the main process keeps for them."""
TAIL = "tail"
"""`Carried.tail`."""

SamplingParams = dict[str, Any]

_SECRET = secrets.token_hex(16)
_numbers = itertools.count()


class Live:
    """What the main process keeps of one HTTP request while it runs.

    Whoever handles the request holds it; `live` finds it as long as somebody does.

    Attributes:
        token: the request's.
        state: by capability, what cannot travel as text.
        decoded: options by capability and text, so that each text is decoded once.
        error: what was found wrong with the request after SGLang had taken it.
    """

    def __init__(self) -> None:
        self.token = f"{_SECRET}{next(_numbers)} "
        self.state: dict[str, Any] = {}
        self.decoded: dict[tuple[str, str], Any] = {}
        self.error: TesseraError | None = None
        _live[self.token] = self


_live: WeakValueDictionary[str, Live] = WeakValueDictionary()


class Carried(NamedTuple):
    """What one prompt of a request carries.

    Attributes:
        token: tells this request from any other that a client may give the same id; "" where it carries nothing.
        wires: the options of each capability that it uses, as text, by the capability's name.
        tail: how many of the prompt's last tokens are an answer, generated elsewhere, that is to be verified; None for
            any other prompt. Such a prompt is run whole or not at all.
        prompt: its index in the HTTP request, where that matters; else 0.
    """

    token: str = ""
    wires: Mapping[str, str] = {}
    tail: int | None = None
    prompt: int = 0


NOTHING = Carried()


def take(sampling_params: object) -> Carried:
    """What rides in the sampling parameters of one prompt.

    Raises:
        BadRequest: a client wrote the reserved key itself.
    """
    custom = sampling_params.get("custom_params") if isinstance(sampling_params, dict) else None
    if not isinstance(custom, dict) or KEY not in custom:
        return NOTHING
    own = custom[KEY]
    if not isinstance(own, dict) or not str(own.get(TOKEN)).startswith(_SECRET):
        raise BadRequest("sampling_params.custom_params", custom, f"no {KEY}: it is reserved; use the request's fields")
    return parse(own)


def parse(own: Mapping[str, Any]) -> Carried:
    """The `Carried` in the object under the key, as our main process wrote it."""
    wires = dict(own)
    return Carried(wires.pop(TOKEN), tail=wires.pop(TAIL, None), prompt=wires.pop(PROMPT, 0), wires=wires)


def put(params: SamplingParams, live: Live, wires: Mapping[str, str], **marks: int | None) -> SamplingParams:
    """The sampling parameters of one prompt with what it asks for; SGLang's own stay as they are.

    Args:
        params: of the prompt.
        live: of its HTTP request.
        wires: options as text, by the capability's name.
        marks: `TAIL` and `PROMPT`.
    """
    custom = params.get("custom_params") or {}
    own = {**custom.get(KEY, {}), TOKEN: live.token, **wires}
    own |= {name: value for name, value in marks.items() if value is not None}
    return {**params, "custom_params": {**custom, KEY: own}}


def check_params(params: object) -> SamplingParams:
    """The sampling parameters of one prompt, which may be none.

    Raises:
        BadRequest: they are no object, or not of the form that we add to.
    """
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise BadRequest("sampling_params", params, "an object, or a list of objects")
    custom = params.get("custom_params")
    if custom is not None and not isinstance(custom, dict):
        raise BadRequest("sampling_params.custom_params", custom, "an object")
    return params


def each(sampling_params: object) -> Sequence[Any]:
    """The sampling parameters of each prompt, or one object for all of them."""
    return sampling_params if isinstance(sampling_params, list) else [sampling_params]


def live(sampling_params: object) -> Live | None:
    """What the main process keeps of the request with these sampling parameters; None where it keeps nothing."""
    listed = each(sampling_params)
    return find(take(listed[0]).token) if listed else None


def find(token: str) -> Live | None:
    """What the main process keeps of the request with this token; None where it keeps nothing."""
    return _live.get(token)


def without(custom_params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Custom parameters without what is ours, a secret among it; None where nothing is left."""
    return {key: value for key, value in custom_params.items() if key != KEY} or None


def uses(sampling_params: object, name: str) -> bool:
    """Whether one of these prompts uses a capability."""
    return any(name in take(own).wires for own in each(sampling_params))


def with_wire(params: SamplingParams, name: str, wire: str) -> SamplingParams:
    """The sampling parameters of one prompt that carries something, with another text for one capability."""
    custom = params["custom_params"]
    return {**params, "custom_params": {**custom, KEY: {**custom[KEY], name: wire}}}


def without_capability(params: SamplingParams, name: str) -> SamplingParams:
    """The sampling parameters of one prompt that carries something, without one capability."""
    custom = params["custom_params"]
    own = {key: value for key, value in custom[KEY].items() if key != name}
    return {**params, "custom_params": {**custom, KEY: own}}


def note_error(sampling_params: object, error: TesseraError) -> None:
    """Note what was found wrong with a request after SGLang had taken it: `Live.error`."""
    if own := live(sampling_params):
        own.error = error
