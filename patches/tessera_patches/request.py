"""The request: SGLang's ``GenerateReqInput`` with our fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.managers import io_struct

from tessera import config
from tessera.admission import admit_embedding, admit_states


@dataclass
class GenerateReqInput(io_struct.GenerateReqInput):
    """REPLACEs ``io_struct.GenerateReqInput``. FastAPI builds it from the body, so a bad value never gets further.

    Attributes:
        return_embedding: true, false, or the object that `tessera.embed.options.EmbedOptions` describes.
        return_hidden_states: SGLang's field; on a server that keeps rows also an object with over and positions,
            and answered by us, so SGLang itself sees false.
        hidden_states_format: `tessera.states.options.Format`.
    """

    return_embedding: Any = None
    return_hidden_states: Any = False
    hidden_states_format: Any = None

    def __post_init__(self) -> None:
        settings = config.active
        params: Any = self.sampling_params  # type: ignore[has-type]  # inherited from Any
        params = admit_embedding(self.return_embedding, params, enabled=settings.rows, hidden_size=settings.hidden_size)
        if settings.rows:
            params = admit_states(self.return_hidden_states, self.hidden_states_format, params)
            self.return_hidden_states = False
        self.sampling_params = params
