"""SGLang's logs, records and dumps of requests."""

from __future__ import annotations

from tessera_patches.inventory.places import TOKENIZER
from tessera_patches.seam import Guard, Hook, Phase, Seam

EXPORTER = "sglang.srt.observability.request_metrics_exporter"
LOGGER = "sglang.srt.utils.request_logger.RequestLogger"


def _seam(target: str, handler: str, why: str, *callers: str) -> Seam:
    return Seam(
        target=target,
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows, inject",
        handler=f"tessera_patches.records:{handler}",
        guard=Guard.PARAMETERS,
        why=why,
        remove_when="SGLang passes unknown request fields to plugins.",
        callers=callers,
    )


SEAMS = (
    _seam(
        f"{EXPORTER}.RequestMetricsExporter._format_output_data",
        "exported",
        "A record is JSON: it has our fields, and not the vectors of injection.",
        f"{EXPORTER}.FileRequestMetricsExporter.write_record",
    ),
    _seam(
        f"{LOGGER}.log_received_request",
        "logged",
        "The log shows our fields, and no secret.",
        f"{TOKENIZER}.generate_request",
    ),
    _seam(
        f"{LOGGER}.log_finished_request",
        "logged",
        "The log shows our fields, and no secret.",
        f"{TOKENIZER}._wait_one_response",
    ),
    _seam(
        f"{LOGGER}.log_openai_received_request",
        "logged_openai",
        "The log shows our fields, and no secret.",
        "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
    ),
    _seam(
        f"{TOKENIZER}.dump_requests",
        "dumped",
        "A dumped request can be sent again.",
        f"{TOKENIZER}._handle_batch_output",
    ),
    _seam(
        f"{TOKENIZER}.record_request_for_crash_dump",
        "dumped",
        "A dumped request can be sent again.",
        f"{TOKENIZER}._handle_batch_output",
    ),
)
