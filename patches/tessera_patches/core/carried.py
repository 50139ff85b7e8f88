"""What a request carries for us, out of sight of custom logit processors. Scheduler process."""

from __future__ import annotations

from typing import Any

from tessera.admission import KEYS

_NAME = "tessera_carried"
_OWNER = "__req__"
"""The key under which SGLang gives processors the ``Req``, whose text has its sampling parameters."""


def take(req: Any) -> None:
    """Take our keys out of ``custom_params``, which processors read and may log; nothing the second time."""
    custom = req.sampling_params.custom_params
    if not isinstance(custom, dict) or not KEYS.keys() & custom.keys():
        return
    setattr(req, _NAME, {key: custom.pop(key) for key in KEYS.keys() & custom.keys()})
    if custom.keys() <= {_OWNER}:
        req.sampling_params.custom_params = None


def of(req: Any) -> dict[str, str]:
    """What a ``Req`` carries, by the keys of `tessera.admission`."""
    found: dict[str, str] = getattr(req, _NAME, {})
    return found
