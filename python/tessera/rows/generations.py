"""Which weights rows were computed with, and which prefixes of SGLang's cache a reader of rows may still use."""

from tessera.request_fields import RESERVED_KEY


class Generations:
    """Counts the weights that a scheduler has served. Each tensor-parallel rank counts alike.

    Attributes:
        number: how often the weights have changed.
    """

    def __init__(self) -> None:
        self.number = 0
        self._older_prefixes = False

    def note_update(self) -> None:
        """Count a change of weights: what is cached was computed with older ones, and its rows are gone."""
        self.number += 1
        self._older_prefixes = True

    def note_flush(self) -> None:
        """Note that the prefix cache is empty."""
        self._older_prefixes = False

    def key(self, extra_key: str | None) -> str | None:
        """The ``extra_key`` of a request that reads rows: with it, prefixes of older weights are cache misses.

        SGLang divides its prefix cache by it. No client can give such a key.
        """
        if not self._older_prefixes:
            return extra_key
        return f"{RESERVED_KEY}{self.number}{'' if extra_key is None else f' {extra_key}'}"
