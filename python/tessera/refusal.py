"""Server options that a feature cannot be combined with, as a table: one row, one sentence at start.

What counts is the value that SGLang has resolved an option to, for that is what serves: one that it turned off has no
effect (``--enable-dp-attention`` with one replica), and one that a model turns on was never on the command line.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NamedTuple

from tessera.server_options import ServerOptions
from tessera.versions import within

BEFORE_0_5_23 = "<0.5.23"
"""For what was tried with 0.5.17, and failed, and serves with 0.5.23; nobody tried other versions. This says with which
version something was tried, and nothing of SGLang's features."""
NOT_SERVED = "not tested: SGLang alone did not serve with it where it was tried"
VIRTUAL_SLOTS = "KV slots are virtual and move"
"""What became of the options with these reasons: docs/measurements/refusals.md."""


class Refusal(NamedTuple):
    """An option that a feature cannot be combined with.

    Attributes:
        option: as it is written on the command line; or a variable of SGLang's.
        why: the reason, as the end of a sentence; `reason` has the versions, too.
        applies: whether SGLang's options have it; by default, where its field has a value that is not empty.
        versions: of SGLang that are refused, all before one, ``<0.5.23``; "" is all.
    """

    option: str
    why: str
    applies: Callable[[ServerOptions], bool] | None = None
    versions: str = ""

    @property
    def counts(self) -> bool:
        """Whether it is of the installed SGLang."""
        return within(version("sglang"), self.versions)

    def applies_to(self, args: ServerOptions) -> bool:
        """Whether ``args`` have the option, with the installed SGLang."""
        given = getattr(args, field_of(self.option)) if self.applies is None else self.applies(args)
        return bool(given) and self.counts

    @property
    def reason(self) -> str:
        """Why, with which versions of SGLang, and which serves it."""
        return f"{self.why} (SGLang {self.versions}; {self.versions[1:]} serves it)" if self.versions else self.why


UNCHECKED = (
    Refusal("--smg-grpc-mode", "requests come in where our checks are not"),
    Refusal("--grpc-port", "requests come in where our checks are not"),
)
"""Of every feature, by what SGLang makes of its options: ``--grpc-mode`` and ``SGLANG_GRPC_PORT`` come to these too."""


def field_of(option: str) -> str:
    """The field of SGLang's ``ServerArgs`` that an option sets; what follows a space is not part of its name."""
    return option.split(maxsplit=1)[0].removeprefix("--").replace("-", "_")


def spreads_attention(args: ServerOptions) -> bool:
    """``--enable-dp-attention`` is in force: SGLang may turn the option itself off and keep what it comes to."""
    return bool(args.enable_dp_attention) or (getattr(args, "attn_dp_size", None) or 1) > 1


def schedules_apart(args: ServerOptions) -> bool:
    """Several schedulers have requests of their own: replicas (``--dp-size``), or ranks (``--enable-dp-attention``)."""
    return args.dp_size > 1 or spreads_attention(args)


def above_one(name: str) -> Callable[[ServerOptions], bool]:
    """The field ``name`` is a number above 1; None counts as 1."""
    return lambda args: (getattr(args, name) or 1) > 1


def set_later(name: str) -> Callable[[ServerOptions], bool]:
    """The field ``name``, which not all supported versions of SGLang have, is there and not empty."""
    return lambda args: bool(getattr(args, name, None))


def _buffers_states(args: ServerOptions) -> bool:
    return not args.disable_radix_cache and str(args.mamba_radix_cache_strategy).startswith("extra_buffer")


BESIDE = " where a model has Mamba or linear-attention state"
"""What is added to the name of an option for the refusals of such models."""
WRONG_BESIDE_STATE = (
    Refusal(
        "--mamba-radix-cache-strategy extra_buffer",
        "SGLang's own states after a cached prefix are wrong; take no_buffer and --disable-overlap-schedule",
        _buffers_states,
        BEFORE_0_5_23,
    ),
    Refusal("--speculative-algorithm", "some vectors are wrong", versions=BEFORE_0_5_23),
    Refusal("--enable-linear-replayssm", "some vectors are wrong", versions=BEFORE_0_5_23),
)
"""For models with Mamba or linear-attention state: rows and injection were tried together with each of these."""


def lines(refusals: Sequence[Refusal], args: ServerOptions, feature: str) -> list[str]:
    """One sentence for each refusal that applies to ``args``; ``feature`` is the option that asked for the feature."""
    return [
        f"{refusal.option} cannot be combined with {feature}: {refusal.reason}"
        for refusal in refusals
        if refusal.applies_to(args)
    ]
