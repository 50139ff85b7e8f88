"""What stands for an injected token in the prefix cache.

SGLang's cache knows a prompt by its token ids. Two prompts with the same ids and other vectors have other KV, so at an
injected position we show the cache a number in place of the id: a keyed hash of the vector, of how it is placed, and of
the id. Such a number is no token id, so no plain prompt can ever match it, and a prefix is shared up to the first
position at which two prompts differ: before the first injection with everybody, after it with those that inject the
same. The key of the hash is drawn at each start, so nobody can search for two vectors with one number beforehand; 62
bits suffice against chance (one in 10^7 for a million different vectors after the same prefix).
"""

from __future__ import annotations  # Python 3.11 has no array[int]

import hashlib
import secrets
from array import array
from collections.abc import Sequence

import numpy as np
import torch

from tessera.capabilities.inject.injection import Flags, Injection, Ints

FIRST_KEY = 1 << 62
"""No token id is as large; SGLang's arrays of ids hold 64 bits."""

_SECRET = secrets.token_bytes(32)


def keys_of(token_ids: Sequence[int], flags: Flags, vectors: torch.Tensor, secret: bytes = _SECRET) -> Ints:
    """One number for each injected position.

    Args:
        token_ids: of the tokens there.
        flags: how each vector is placed.
        vectors: ``[n, H]``; each together with its dtype counts by its bytes.
        secret: key of the hash, at most 64 bytes.
    """
    rows = vectors.contiguous().view(torch.uint8).numpy()
    dtype = str(vectors.dtype)
    keys = np.empty(len(rows), np.int64)
    for i, (token, flag, row) in enumerate(zip(token_ids, flags, rows, strict=True)):
        digest = hashlib.blake2b(f"{dtype} {flag} {token} ".encode(), digest_size=8, key=secret)
        digest.update(row)
        keys[i] = FIRST_KEY | (int.from_bytes(digest.digest(), "little") >> 2)
    return keys


class KeyedIds:
    """Shows the injected positions of SGLang's arrays of token ids as keys or, for a moment, as the ids they are.

    Args:
        injection: the request's.
        token_ids: its prompt, ``array('q')``, not to be changed.
    """

    def __init__(self, injection: Injection, token_ids: array[int]) -> None:
        self._positions = injection.positions
        self._keys = injection.keys
        self._ids = np.frombuffer(token_ids, np.int64)[injection.positions].copy()

    def hide(self, token_ids: array[int]) -> None:
        """Write the keys into an array, in place; positions beyond its end are left out."""
        _write(token_ids, self._positions, self._keys)

    def show(self, token_ids: array[int]) -> None:
        """Write the prompt's own ids in place of the keys."""
        _write(token_ids, self._positions, self._ids)


def _write(token_ids: array[int], positions: Ints, values: Ints) -> None:
    inside = int(np.searchsorted(positions, len(token_ids)))
    np.frombuffer(token_ids, np.int64)[positions[:inside]] = values[:inside]
