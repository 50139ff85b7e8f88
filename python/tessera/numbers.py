"""Arrays of answers as SGLang has them: lists."""

from typing import Any

import numpy as np


def as_lists(value: Any) -> Any:
    """An array, or a list of arrays, as nested lists of numbers; anything else as it is."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return [part.tolist() for part in value]
    return value
