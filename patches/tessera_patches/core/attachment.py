"""Our data on one of SGLang's verification inputs, from the draft to the acceptance."""

from __future__ import annotations

from typing import Any, ClassVar, Self


class Attachment:
    """Base of data that is attached to an ``EagleVerifyInput``, one object of each subclass."""

    __slots__ = ()
    _name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls._name = f"tessera_{cls.__name__}"

    def attach(self, verify_input: Any) -> None:
        """Attach this to a verification input."""
        setattr(verify_input, self._name, self)

    @classmethod
    def of(cls, verify_input: Any) -> Self | None:
        """What is attached; None where nothing is, and while a graph is captured."""
        found: Self | None = getattr(verify_input, cls._name, None)
        return found
