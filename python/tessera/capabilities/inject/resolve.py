"""From what a request asked for and its token ids to the injection: where each vector goes."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tessera.capabilities.inject.decoded import Decoded
from tessera.capabilities.inject.injection import ADD, MATCHED, Injection, Ints, concatenate
from tessera.capabilities.inject.keys import keys_of
from tessera.capabilities.inject.options import Token
from tessera.errors import BadRequest, Described

Tokenize = Callable[[str], list[int]]
"""The token ids of a text, without special tokens around it."""


def resolve(
    overrides: Sequence[Decoded], token_ids: Sequence[int], vocabulary: int, tokenize: Tokenize | None
) -> Injection:
    """Find every position, check it, and order all by position.

    Args:
        overrides: of one prompt.
        token_ids: its tokens.
        vocabulary: how many tokens the model knows; it dies of any other.
        tokenize: turns the text of a token into its id; None on a server without a tokenizer.

    Raises:
        BadRequest: a position is outside, or taken twice; a token or its neighbours are not where they should be.
    """
    ids = _checked(token_ids, vocabulary)
    places = [_places(override, ids, tokenize) for override in overrides]
    positions = np.concatenate(places)
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    twice = positions[1:][np.diff(positions) == 0]
    if twice.size:
        raise BadRequest(f"{overrides[-1].field}.positions", int(twice[0]), "each position once in a prompt")
    flags = np.concatenate([np.full(len(o.vectors), ADD * o.add | MATCHED * o.matched, np.uint8) for o in overrides])
    flags = flags[order]
    each = [override.vectors.contiguous() for override in overrides]
    vectors = _reordered(concatenate(each) if len(each) > 1 else each[0], order)
    return Injection(positions, keys_of(ids[positions].tolist(), flags, vectors), flags, vectors)


def _checked(token_ids: Sequence[int], vocabulary: int) -> Ints:
    if not token_ids:
        raise BadRequest("text", Described("a prompt without tokens"), "at least one")
    least, most = min(token_ids), max(token_ids)
    if least < 0 or most >= vocabulary:
        raise BadRequest("input_ids", least if least < 0 else most, f"token ids, 0 to {vocabulary - 1}")
    return np.array(token_ids, np.int64)


def _reordered(vectors: torch.Tensor, order: Ints) -> torch.Tensor:
    """Rows in another order, by NumPy: torch wakes its threads for this, which took up to 7 ms where all were busy."""
    if (np.diff(order) == 1).all():
        return vectors
    rows = vectors.view(torch.uint8).numpy()[order]
    return torch.from_numpy(rows).view(vectors.dtype)


def _places(override: Decoded, ids: Ints, tokenize: Tokenize | None) -> Ints:
    if override.positions is None:
        places = _token_positions(override, ids, tokenize)
    else:
        places = np.array(override.positions, np.int64)
        if places.max() >= len(ids):
            raise BadRequest(f"{override.field}.positions", int(places.max()), f"0 to {len(ids) - 1}, in this prompt")
    for side, offset in (("left", -1), ("right", 1)):
        expected = getattr(override.neighbours, side)
        if expected is not None:
            _check_neighbours(f"{override.field}.expect_neighbours.{side}", expected, places + offset, ids, tokenize)
    return places


def _token_positions(override: Decoded, ids: Ints, tokenize: Tokenize | None) -> Ints:
    field = f"{override.field}.token"
    token = override.token
    if token is None:  # the schema lets none through
        raise BadRequest(field, None, "either positions or token")
    places = np.flatnonzero(ids == _id(field, token, tokenize)).astype(np.int64)
    if len(places) != len(override.vectors):
        found = f"{token!r}, {len(places)} times in the prompt"
        raise BadRequest(field, Described(found), f"{len(override.vectors)} times, once for each vector")
    return places


def _check_neighbours(field: str, token: Token, places: Ints, ids: Ints, tokenize: Tokenize | None) -> None:
    expected = _id(field, token, tokenize)
    for place in places.tolist():
        found = int(ids[place]) if 0 <= place < len(ids) else None
        if found != expected:
            what = "the prompt's edge" if found is None else f"token {found}"
            raise BadRequest(field, Described(f"{what} at position {place}"), f"token {expected}")


def _id(field: str, token: Token, tokenize: Tokenize | None) -> int:
    if isinstance(token, int):
        return token
    if tokenize is None:
        raise BadRequest(field, token, "a token id: this server has no tokenizer")
    ids = tokenize(token)
    if len(ids) != 1:
        raise BadRequest(field, token, f"the text of one token; this is {len(ids)}: {ids[:8]}")
    return ids[0]
