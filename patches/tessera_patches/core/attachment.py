"""What TileSpec knows of one verification, kept with the object that SGLang hands through it."""

from __future__ import annotations

from typing import Any, ClassVar, Self


class Attachment:
    """Base of what is kept with an ``EagleVerifyInput``: one of each class."""

    __slots__ = ()
    _name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls._name = f"tessera_{cls.__name__}"

    def attach(self, verify_input: Any) -> None:
        """Keep this with a verification."""
        setattr(verify_input, self._name, self)

    @classmethod
    def of(cls, verify_input: Any) -> Self | None:
        """What was kept; None where nothing was, and where a graph is captured."""
        found: Self | None = getattr(verify_input, cls._name, None)
        return found
