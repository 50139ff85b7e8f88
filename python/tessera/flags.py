"""The options that we add to SGLang's launcher: one field of `Flags` is one option."""

import argparse
import os
import shlex
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, replace
from typing import Any, Self

from tessera.capabilities.embed.flags import EmbedFlags
from tessera.capabilities.fingerprints.flags import FingerprintFlags
from tessera.capabilities.inject.flags import InjectFlags
from tessera.flag import count, option
from tessera.tilespec.flags import TileSpecFlags

ENVIRONMENT = "TESSERA_ARGS"
"""Environment: our options as on a command line, for launchers that pass on only the options that they know."""


@dataclass(frozen=True)
class ServerFlags:
    """Where rows are kept, limits of requests and answers."""

    rows_on_host: bool = option(
        False,
        "with --enable-return-hidden-states or --toploc-verification, keep the row store in the host's memory, and "
        "leave the GPU's to the KV cache: for models whose rows are large beside their KV (MLA, linear attention). "
        "Rows are written and read over the bus",
    )

    answer_max_megabytes: int = option(
        1024,
        "with --enable-return-hidden-states, the largest answer to one request, over all its prompts and samples "
        "(else 413). Raw rows in flight are at most twice that; other requests wait (default: 1024)",
        count,
        "MB",
    )

    body_max_seconds: int = option(
        120,
        "with --enable-return-hidden-states or --enable-injection, how long a client may take to send the body of "
        "a request; longer is a 408 (default: 120)",
        count,
        "S",
    )

    tessera_ui: bool = option(
        False,
        "serve the playground at GET /tessera: a page on which to try embeddings, hidden states and fingerprints, and "
        "to watch metrics. The page itself needs no key, its requests do",
    )


@dataclass(frozen=True)
class Flags(TileSpecFlags, InjectFlags, ServerFlags, EmbedFlags, FingerprintFlags):
    """What the command line says about us; SGLang's own ``ServerArgs`` has no room for it."""

    @classmethod
    def of_environment(cls) -> Self:
        """The options in ``TESSERA_ARGS``. A wrong one ends the process, as on a command line."""
        parser = argparse.ArgumentParser(prog=ENVIRONMENT, add_help=False, allow_abbrev=False)
        add_to(parser, cls())
        return cls(**vars(parser.parse_args(shlex.split(os.environ.get(ENVIRONMENT, "")))))

    def non_default(self) -> dict[str, Any]:
        """Those that differ from their defaults, as they are written on a command line."""
        return {name_of(one): value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    def updated(self, given: Mapping[str, Any]) -> Self:
        """The same with the values that ``given`` has for fields of this class; what else it has is passed over.

        Raises:
            ValueError: a value is not one of the option's.
        """
        return replace(self, **{one.name: _value(one, given[one.name]) for one in fields(self) if one.name in given})


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
