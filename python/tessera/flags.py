"""The options that we add to SGLang's launcher: one field of `Flags` is one option."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from tessera.embed.options import EmbedOptions, Pooling
from tessera.limits import MAX_TOPK

ENVIRONMENT = "TESSERA_ARGS"
"""Environment: our options as on a command line, for launchers that pass on only the options that they know."""


def _says(meaning: str, parse: Callable[[str], Any] | None = None, metavar: str | None = None) -> dict[str, Any]:
    """What ``--help`` says of a field, and how its value is read; without ``parse`` it is a switch."""
    return {"help": meaning, "parse": parse, "metavar": metavar}


def _topk(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= MAX_TOPK:
        return int(text)
    raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 1 to {MAX_TOPK}")


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a finite number above 0")


def _count(text: str) -> int:
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"got {text!r}; allowed: an integer of 1 or more")


def _pooling(text: str) -> Pooling:
    with suppress(ValueError):
        return Pooling(text)
    raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {', '.join(Pooling)}")


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says about us; SGLang's own ``ServerArgs`` has no room for it."""

    toploc_verification: bool = field(
        default=False,
        metadata=_says(
            "return TOPLOC fingerprints with every response (toploc_verification_fingerprints) unless its request says "
            "return_toploc_fingerprints: false; turns --enable-return-hidden-states on"
        ),
    )
    toploc_verification_topk: int = field(
        default=128,
        metadata=_says("values that one fingerprint proves; prover and verifier must agree (default: 128)", _topk, "K"),
    )
    toploc_thresholds: Path | None = field(
        default=None,
        metadata=_says("thresholds of the verifier, a file written by: tessera toploc calibrate", Path, "FILE"),
    )

    embeddings_pooling: Pooling = field(
        default=Pooling.MEAN,
        metadata=_says(
            "what /v1/embeddings and /encode do where a request does not say: mean, last, max or first (default: mean)",
            _pooling,
            "HOW",
        ),
    )
    embeddings_normalize: bool = field(
        default=False,
        metadata=_says("/v1/embeddings and /encode scale vectors to length 1 where a request does not say normalize"),
    )
    embeddings_dimensions: int | None = field(
        default=None,
        metadata=_says(
            "how many values /v1/embeddings and /encode keep where a request does not say dimensions (default: all)",
            _count,
            "N",
        ),
    )
    embeddings_text_only: bool = field(
        default=False,
        metadata=_says(
            "/v1/embeddings refuses token ids: those of another tokenizer, which some clients send, are another text"
        ),
    )

    answer_max_megabytes: int = field(
        default=1024,
        metadata=_says(
            "with --enable-return-hidden-states, the most that the answer to one request may have, of all its prompts "
            "and samples; more is a 413. Raw rows of twice as much are on their way at a time, others wait "
            "(default: 1024)",
            _count,
            "MB",
        ),
    )

    body_max_seconds: int = field(
        default=120,
        metadata=_says(
            "with --enable-return-hidden-states or --enable-injection, how long a client may take to send the body of "
            "a request; longer is a 408 (default: 120)",
            _count,
            "S",
        ),
    )

    enable_injection: bool = field(
        default=False,
        metadata=_says(
            "let requests put vectors into the embeddings of their prompts: input_embed_overrides, input_embeds and "
            "input_embeds_b64, with the prefix cache on"
        ),
    )
    injection_projections: Path | None = field(
        default=None,
        metadata=_says(
            "folder of *.safetensors, each a linear projection (weight [H, width], perhaps bias [H]) from vectors of "
            "another width to the model's; turns --enable-injection on",
            Path,
            "DIR",
        ),
    )
    injection_max_magnitude: float = field(
        default=1e4,
        metadata=_says("largest absolute value of an injected vector (default: 10000)", _positive, "X"),
    )
    injection_max_megabytes: int = field(
        default=64,
        metadata=_says(
            "with --enable-injection, the largest body of a request that generates; more is a 413, read no further "
            "(default: 64)",
            _count,
            "MB",
        ),
    )

    tile_spec: bool = field(
        default=False,
        metadata=_says(
            "choose in every step how many tokens to draft for each request, up to --speculative-num-steps, and which "
            "of them to verify; with --speculative-algorithm EAGLE, EAGLE3 or STANDALONE"
        ),
    )
    tile_spec_no_rejection_sampling: bool = field(
        default=False,
        metadata=_says(
            "with --tile-spec, draft likeliest tokens. By default chains of EAGLE and EAGLE3 are sampled, as with "
            "--speculative-use-rejection-sampling, which takes more memory, and pays off where requests sample"
        ),
    )
    tile_spec_trace: Path | None = field(
        default=None,
        metadata=_says(
            "record every choice of --tile-spec in this file, for: tessera tilespec replay FILE", Path, "FILE"
        ),
    )

    @classmethod
    def of_environment(cls) -> Self:
        """The options in ``TESSERA_ARGS``. A wrong one ends the process, as on a command line."""
        parser = argparse.ArgumentParser(prog=ENVIRONMENT, add_help=False, allow_abbrev=False)
        add_to(parser, cls())
        return cls(**vars(parser.parse_args(shlex.split(os.environ.get(ENVIRONMENT, "")))))

    def updated(self, given: Mapping[str, Any]) -> Self:
        """The same with the values that ``given`` has for fields of this class; what else it has is passed over.

        Raises:
            ValueError: a value is not one of the option's.
        """
        return replace(self, **{one.name: _value(one, given[one.name]) for one in fields(self) if one.name in given})

    @property
    def needs_rows(self) -> bool:
        """Whether the row store must be on, as with ``--enable-return-hidden-states``."""
        return self.toploc_verification

    @property
    def embed_options(self) -> EmbedOptions:
        """What ``/v1/embeddings`` and ``/encode`` do where a request does not say."""
        return EmbedOptions(
            pooling=self.embeddings_pooling,
            normalize=self.embeddings_normalize,
            dimensions=self.embeddings_dimensions,
        )

    @property
    def about_embeddings(self) -> bool:
        """Whether an option of these routes was given."""
        return self.embeddings_text_only or self.embed_options != EmbedOptions()

    @property
    def needs_injection(self) -> bool:
        """Whether requests may inject vectors."""
        return self.enable_injection or self.injection_projections is not None


def add_to(parser: argparse.ArgumentParser, defaults: Flags) -> None:
    """Add every option to SGLang's parser, in a group of its own in ``--help``."""
    group = parser.add_argument_group("tessera", "Options of the plugin sglang-tessera.")
    for one in fields(Flags):
        group.add_argument(name_of(one), default=getattr(defaults, one.name), help=one.metadata["help"], **_kind(one))


def name_of(one: Field[Any]) -> str:
    """How the option is written."""
    return "--" + one.name.replace("_", "-")


def _kind(one: Field[Any]) -> dict[str, Any]:
    parse = one.metadata["parse"]
    if parse is None:
        return {"action": "store_true"}
    return {"type": parse, "metavar": one.metadata["metavar"]}


def _value(one: Field[Any], given: Any) -> Any:
    """What Python code gives for an option: the value itself, or as it is written on a command line."""
    parse = one.metadata["parse"]
    if given == one.default:
        return given
    if parse is None:
        if isinstance(given, bool):
            return given
        raise ValueError(f"{one.name}: got {given!r}; allowed: True, False")
    try:
        return parse(str(given))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{one.name}: {error}") from error
