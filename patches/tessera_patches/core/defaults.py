"""The defaults of a class's fields, whether it is a dataclass or a struct of msgspec's."""

import dataclasses
from typing import Any

import msgspec


def defaults(record: Any) -> dict[str, Any]:
    """What each field of an object is where nobody gives it, by its name; fields that must be given are left out."""
    declared: Any = msgspec.structs if isinstance(record, msgspec.Struct) else dataclasses
    missing = (dataclasses.MISSING, msgspec.NODEFAULT)
    return {
        field.name: field.default_factory() if field.default in missing else field.default
        for field in declared.fields(record)
        if field.default not in missing or field.default_factory not in missing
    }
