"""SGLang's options and model as our logic sees them: values, and no object of SGLang's."""

from typing import Any, NamedTuple, Protocol


class ModelFacts(NamedTuple):
    """What decides whether a feature serves a model.

    Attributes:
        no_full_pool: no layer attends to all tokens, or a token's KV is compressed, so that it has no slot for good.
        keeps_state: it has Mamba or linear-attention state.
        encodes: it has an encoder.
        has_windows: its sliding windows have a KV pool of their own.
        keeps_latents: its KV are latents (MLA).
        has_delta_rule: it has linear attention by the gated delta rule (Qwen3-Next).
        shares_experts: it has experts that every token shares (Qwen2-MoE).
    """

    no_full_pool: bool = False
    keeps_state: bool = False
    encodes: bool = False
    has_windows: bool = False
    keeps_latents: bool = False
    has_delta_rule: bool = False
    shares_experts: bool = False


class ServerOptions(Protocol):
    """What SGLang has resolved its options to: ``tessera_patches.engine.options.Resolved``.

    Each option is an attribute by the name of its field in ``ServerArgs``, and a number, a text, a list or None.
    """

    def __getattr__(self, name: str) -> Any: ...

    @property
    def attention_backends(self) -> tuple[str | None, str | None]:
        """Those of prefills and of decodes."""

    @property
    def model(self) -> ModelFacts | None:
        """The model that they name; None for a placeholder that nothing serves."""
