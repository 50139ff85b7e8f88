"""Our state of SGLang's requests. Scheduler process."""

from copy import copy
from dataclasses import dataclass, field
from typing import Any

from tessera import carry
from tessera.capabilities import registry
from tessera.capabilities.registry import Requested

_NAME = "tessera_state"
_OWNER = "__req__"
"""The key under which SGLang gives custom logit processors the ``Req``, whose text has its sampling parameters."""


@dataclass(slots=True)
class State:
    """What one ``Req`` carries.

    Attributes:
        token: tells its request from any other that a client may give the same id.
        requested: what it asks for.
        wires: by capability, the texts that hooks read: `tessera.capability.Capability.hooked`.
        tail: `tessera.carry.Carried.tail`.
        rows: whether something is read for it.
        done: how many reads of each capability were made while it ran.
        generation: of the weights with which its first row is computed; None until it waits.
        original_key: the ``extra_key`` with which it came.
        informed: whether the main process knows that its rows are outdated.
        prefilled: how often it had been retracted when the rows of all its tokens were last there.
    """

    token: str = ""
    requested: Requested = field(default_factory=dict)
    wires: dict[str, str] = field(default_factory=dict)
    tail: int | None = None
    rows: bool = False
    done: dict[str, int] = field(default_factory=dict)
    generation: int | None = None
    original_key: str | None = None
    informed: bool = False
    prefilled: int = 0


NOTHING = State()
"""The state of requests that carry nothing; not to be changed."""


def of(req: Any) -> State:
    """What a ``Req`` carries.

    The first time, it is taken out of its ``custom_params``, which custom logit processors read and may log.
    """
    found: State | None = getattr(req, _NAME, None)
    return _extracted(req) if found is None else found


def _extracted(req: Any) -> State:
    custom = req.sampling_params.custom_params
    state = NOTHING
    if isinstance(custom, dict) and carry.KEY in custom:
        carried = carry.parse(custom[carry.KEY])
        hooked = {name: wire for name, wire in carried.wires.items() if registry.BY_NAME[name].hooked}
        others = {name: wire for name, wire in carried.wires.items() if name not in hooked}
        requested = registry.requested(others)
        state = State(carried.token, requested, hooked, carried.tail, registry.awaited(requested))
        rest = {key: value for key, value in custom.items() if key != carry.KEY}  # several may have the same object
        # A copy: a stage of --pp-size hands the request to the next one after it has looked at it here.
        req.sampling_params = copy(req.sampling_params)
        req.sampling_params.custom_params = rest if rest.keys() - {_OWNER} else None
    setattr(req, _NAME, state)
    return state
