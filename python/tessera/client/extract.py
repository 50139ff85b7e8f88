"""From a generated text to the candidate in it: what ``extract`` can be."""

from collections.abc import Callable

Extract = Callable[[str], str | None]
"""From a generated text to the candidate in it; None or an empty text drops it."""


def whole(text: str) -> str:
    """The generated text as it is."""
    return text


def first_line(text: str) -> str | None:
    """The first line that is not blank, without the white space around it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), None)
