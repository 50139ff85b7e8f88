"""The defaults of a class's fields, whether it is a dataclass or a struct of msgspec's."""

import dataclasses
from typing import Any

import msgspec


def defaults(record: Any) -> dict[str, Any]:
    """The default of each field of an object, by its name; fields without one are left out."""
    declared: Any = msgspec.structs if isinstance(record, msgspec.Struct) else dataclasses
    missing = (dataclasses.MISSING, msgspec.NODEFAULT)
    return {
        field.name: field.default_factory() if field.default in missing else field.default
        for field in declared.fields(record)
        if field.default not in missing or field.default_factory not in missing
    }
