"""Options of injection."""

from dataclasses import dataclass
from pathlib import Path

from tessera.flag import count, option, positive


@dataclass(frozen=True)
class InjectFlags:
    """A part of `tessera.flags.Flags`."""

    enable_injection: bool = option(
        False,
        "let requests put vectors into the embeddings of their prompts: input_embed_overrides, input_embeds and "
        "input_embeds_b64, with the prefix cache on",
    )
    injection_projections: Path | None = option(
        None,
        "folder of *.safetensors, each a linear projection (weight [H, width], perhaps bias [H]) from vectors of "
        "another width to the model's; turns --enable-injection on",
        Path,
        "DIR",
    )
    injection_max_magnitude: float = option(
        1e4, "largest absolute value of an injected vector (default: 10000)", positive, "X"
    )
    injection_max_megabytes: int = option(
        64,
        "with --enable-injection, the largest body of a request that generates; more is a 413, read no further "
        "(default: 64)",
        count,
        "MB",
    )

    @property
    def needs_injection(self) -> bool:
        """Whether requests may inject vectors."""
        return self.enable_injection or self.injection_projections is not None
