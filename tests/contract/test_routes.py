"""Every route of the installed SGLang that takes a body is known: it serves our fields, refuses them, or is neither."""

from __future__ import annotations

from sglang.srt.entrypoints import http_server
from starlette.routing import Route, WebSocketRoute

from tessera_patches.http.http_server import GENERATING
from tessera_patches.http.unserved import SCORES, TEXT

EMBEDDING = {"/v1/embeddings", "/encode"}
TOKENS = {"/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize", "/v1/messages/count_tokens"}
PARSING = {"/parse_function_call", "/separate_reasoning"}
ABOUT_A_RESPONSE = {"/v1/responses/{response_id}/cancel", "/api/show"}
SESSIONS = {"/open_session", "/close_session"}
OPERATING = {
    "/abort_request",
    "/add_external_corpus",
    "/begin_weight_update",
    "/clear_hicache_storage_backend",
    "/configure_logging",
    "/continue_generation",
    "/destroy_weights_update_group",
    "/dump_expert_distribution_record",
    "/end_weight_update",
    "/flush_cache",
    "/freeze_gc",
    "/get_weights_by_name",
    "/hicache/storage-backend",
    "/hicache/storage-backend/clear",
    "/init_weights_send_group_for_remote_instance",
    "/init_weights_update_group",
    "/load_lora_adapter",
    "/load_lora_adapter_from_tensors",
    "/pause_generation",
    "/pd_role_switch",
    "/release_memory_occupation",
    "/remove_external_corpus",
    "/resume_memory_occupation",
    "/send_weights_to_remote_instance",
    "/set_internal_state",
    "/set_trace_level",
    "/slow_down",
    "/start_expert_distribution_record",
    "/start_profile",
    "/stop_expert_distribution_record",
    "/stop_profile",
    "/unload_lora_adapter",
    "/update_weight_version",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/update_weights_from_tensor",
    "/weights_checker",
}

NEWER = {"/v1/decisions", "/v1/systemone"}
"""Not all supported versions have these."""


def test_every_route_that_takes_a_body_is_known() -> None:
    """A new one of SGLang's would drop our fields with 200 until somebody looks at it."""
    taking = {
        route.path
        for route in http_server.app.router.routes
        if isinstance(route, WebSocketRoute)
        or (isinstance(route, Route) and {"POST", "PUT"} & (route.methods or set()))
    }
    known = {*GENERATING, *TEXT, *SCORES} | EMBEDDING | TOKENS | PARSING | ABOUT_A_RESPONSE | SESSIONS | OPERATING
    assert taking - known == set()
    assert {*GENERATING, *TEXT, *SCORES} - taking <= NEWER
