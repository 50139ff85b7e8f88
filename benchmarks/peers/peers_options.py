"""The options of a server on this machine: those that a test of SGLang gives, without its GPU's, and our own.

`STOCK` and `EVERYTHING` name the two sides that are compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

STOCK = "stock"
EVERYTHING = "everything"
SIDES = (STOCK, EVERYTHING)
OURS = ("--toploc-verification", "--enable-injection")
"""Every feature of ours but `TILE_SPEC`, which needs a server that drafts."""
TILE_SPEC = "--tile-spec"
HIDDEN = "--enable-return-hidden-states"

MODELS = Path(__file__).resolve().parents[2] / "tests/support/models"
TINY = MODELS / "tiny"
MODEL = Path(os.environ.get("PEERS_MODEL", TINY))
ADAPTER = MODEL.with_name("tiny-adapter")
"""What stands for a model of the hub, and for an adapter of it."""

_DRAFTS = "--speculative-algorithm"
_DRAFT_MODEL = "--speculative-draft-model-path"
# What only a GPU has, or what `_CPU` says.
_VALUED = {
    *("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend", "--device", "--dtype"),
    *("--speculative-draft-attention-backend", "--mem-fraction-static", "--sampling-backend", "--quantization"),
    *("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", "--cuda-graph-config", "--cuda-graph-backend-prefill"),
    *("--lora-backend", "--grammar-backend", "--moe-runner-backend"),
}
_BARE = {
    *("--disable-cuda-graph", "--enable-torch-compile", "--enable-deterministic-inference", "--skip-server-warmup"),
    *("--trust-remote-code", "--enable-return-hidden-states", "--sleep-on-idle"),
}
# xgrammar, SGLang's default, ends a scheduler that has no GPU.
_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32", "--mem-fraction-static", "0.9"),
    *("--grammar-backend", "llguidance", "--skip-server-warmup", "--sleep-on-idle"),
)
_MANY = 8
_UNLESS_GIVEN = {"--max-total-tokens": "16384", "--max-running-requests": "32"}


def server_options(
    given: Iterable[object], side: str, context: int, ours: Iterable[str] = OURS, *, sized: bool = True
) -> list[str]:
    """Return the options of a server of a test.

    Args:
        given: what the test asks for.
        side: `STOCK` or `EVERYTHING`.
        context: tokens of a request at most, which cuts those that ask for more: a tiny model does not stop by itself.
        ours: what a server with everything on has beside every row.
        sized: whether one that drafts has `TILE_SPEC`, too.
    """
    wanted = [str(option) for option in given]
    hidden = HIDDEN in wanted
    options = _shared(list(_without_gpu(wanted)))
    names = {option.split("=")[0] for option in options}
    for name, value in {**_UNLESS_GIVEN, "--context-length": str(context)}.items():
        if name not in names:
            options += [name, value]
    if "--context-length" not in names:
        options.append("--allow-auto-truncate")
    if names & {"--enable-lora", "--lora-paths"}:
        options += ["--lora-backend", "torch_native"]
    options += _CPU
    if hidden or side == EVERYTHING:
        options.append(HIDDEN)
    if side == EVERYTHING:
        options += ours
        options += [TILE_SPEC] if sized and _tile_spec_serves(options) else []
    return options


def _shared(options: list[str]) -> list[str]:
    """Without a number of running requests that is as good as ours: tests can share the server."""
    name = "--max-running-requests"
    if name in options:
        i = options.index(name)
        if int(options[i + 1]) >= _MANY:
            return options[:i] + options[i + 2 :]
    return options


def local(model: str) -> str:
    """Return the folder of the tiny model that stands for a model of the hub; a folder stays as it is."""
    if Path(model).is_dir():
        return model
    name = model.lower()
    if "eagle3" in name:
        return str(MODELS / "tiny-eagle3")
    if "eagle" in name:
        return str(MODELS / "tiny-eagle")
    return str(MODELS / "tiny-moe" if "moe" in name or "a3b" in name else MODEL)


def _without_gpu(options: list[str]) -> Iterator[str]:
    rest = iter(options)
    for option in rest:
        name, equals, value = option.partition("=")
        if name in _VALUED:
            if not equals:
                next(rest, None)
        elif name == _DRAFT_MODEL:
            yield from (name, local(value if equals else next(rest)))
        elif name not in _BARE:
            yield option


def _tile_spec_serves(options: list[str]) -> bool:
    """Whether the server drafts, by a model of its own."""
    split = [part for option in options for part in option.split("=", 1)]
    return _DRAFTS in split and split[split.index(_DRAFTS) + 1].upper() in {"EAGLE", "EAGLE3"}
