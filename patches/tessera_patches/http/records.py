"""SGLang's logs, records and dumps of requests: they show our fields, and not how these ride. Main process."""

import copy
from collections.abc import Callable
from typing import Any

from tessera import carry, sent


def _as_sent(obj: Any) -> Any:
    """A copy of a ``GenerateReqInput`` as its client sent it; itself where it carries none of our fields."""
    params = obj.sampling_params
    if not sent.carries(params):
        return obj
    shown = copy.copy(obj)
    shown.sampling_params = sent.plain(params)
    shown.tessera_live = None  # a dump is pickled: neither the secret nor vectors belong there
    vars(shown).update(sent.fields(params))
    return shown


def export_request(original: Callable[..., Any], exporter: Any, obj: Any, out_dict: Any) -> Any:
    """AROUND ``RequestMetricsExporter._format_output_data``, which writes JSON: vectors to inject are left out."""
    return original(exporter, _as_sent(obj), out_dict)


def log_request(original: Callable[..., None], logger: Any, obj: Any, *args: Any, **kwargs: Any) -> None:
    """AROUND ``RequestLogger.log_received_request`` and ``log_finished_request``."""
    shown = _as_sent(obj) if logger.log_requests else obj
    original(logger, shown, *args, **kwargs)
    obj.text = shown.text  # SGLang puts there what it decoded for its log


def log_openai_request(original: Callable[..., None], logger: Any, request: Any, /, *args: Any, **kwargs: Any) -> None:
    """AROUND ``RequestLogger.log_openai_received_request``."""
    params: dict[str, Any] = {"custom_params": getattr(request, "custom_params", None)}
    if sent.carries(params):
        changed = {**sent.fields(params), "custom_params": carry.without(params["custom_params"])}
        request = request.model_copy(update=changed)
    original(logger, request, *args, **kwargs)


def dump_request(original: Callable[..., None], manager: Any, state: Any, out_dict: Any) -> None:
    """AROUND ``TokenizerManager.dump_requests`` and ``record_request_for_crash_dump``: dumps are sent again."""
    shown = copy.copy(state)
    shown.obj = _as_sent(state.obj)
    original(manager, shown, out_dict)
