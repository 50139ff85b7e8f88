"""Of which of SGLang's classes the objects are that hooks handle, by what hooks call them.

``tests/contract/test_hook_reads.py`` compares this with the functions that are hooked.
"""

from __future__ import annotations

from tessera_patches.core import places as paths

UNKNOWN = ""
"""An object of SGLang's, or what one of its functions returned: its class is not known."""
_MODE = "sglang.srt.model_executor.forward_batch_info.ForwardMode"
_DRAFT_WORKER = f"{paths.WORKERS}.EagleDraftWorker"
_GRAPHS = "sglang.srt.model_executor.runner.DecodeCudaGraphRunner"
_IO = f"{paths.MANAGERS}.io_struct"
_RESULT = f"{paths.MANAGERS}.utils.GenerationBatchResult"
KINDS = {
    "backend": "sglang.srt.layers.attention.base_attn_backend.AttentionBackend",
    "batch": paths.BATCH,
    "batch_output": _RESULT,
    "batch_result": _RESULT,
    "envs": paths.ENVIRONMENT,
    "factory": paths.DRAFT_BACKENDS,
    "forward_batch": paths.FORWARD_BATCH,
    "forward_mode": _MODE,
    "graphs": _GRAPHS,
    "http_server": paths.HTTP_SERVER,
    "layer": "sglang.srt.layers.radix_attention.RadixAttention",
    "logits_output": paths.LOGITS_OUTPUT,
    "manager": paths.TOKENIZER,
    "mode": _MODE,
    "model_runner": paths.RUNNER,
    "obj": paths.REQUEST,
    "orchestrator": "sglang.srt.sampling.penaltylib.orchestrator.BatchedPenalizerOrchestrator",
    "ragged": _GRAPHS,
    "req": paths.REQ,
    "runner": paths.RUNNER,
    "sampling": paths.BATCH_SAMPLING,
    "sampling_info": paths.BATCH_SAMPLING,
    "scheduler": paths.SCHEDULER,
    "server_args": paths.SERVER_ARGS,
    "target_worker": paths.WORKER,
    "topk_output": "sglang.srt.layers.moe.topk.StandardTopKOutput",
    "verify_input": paths.VERIFY_INPUT,
    "worker": f"{paths.WORKERS}.EAGLEWorkerV2",
}
"""What hooks call an object of SGLang's, as an argument or a variable."""
FIELDS = {
    "_draft_worker": _DRAFT_WORKER,
    "draft_worker": _DRAFT_WORKER,
    "next_draft_input": paths.DRAFT_INPUT,
    "orchestrator": KINDS["orchestrator"],
    "target_worker": paths.WORKER,
    "_next": paths.DRAFT_INPUT,
    "_worker": KINDS["worker"],
}
"""What fields of these objects, or of ours, hold that SGLang declares to be less, or not at all."""
_EXTENDS = f"{paths.SPECULATIVE}.eagle_info.EagleDraftExtendInput"
IN: dict[str, dict[str, str | None]] = {
    "cpu.experts": {"layer": UNKNOWN},
    "cpu.latents": {"layer": "sglang.srt.models.deepseek_v2.DeepseekV2AttentionMLA"},
    "cpu.speculation": {"drafts": paths.VERIFY_INPUT},
    "cpu.windows": {"backend": "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"},
    "http.http_server": {
        "started": "sglang.srt.entrypoints.engine.SchedulerInitResult",
        "state": f"{paths.HTTP_SERVER}._GlobalState",
    },
    "http.openai": {"serving": paths.CHAT},
    "http.records": {
        "logger": "sglang.srt.utils.request_logger.RequestLogger",
        "state": f"{paths.MANAGERS}.tokenizer_manager.ReqState",
    },
    "http.stock_routes": {"stock": paths.HTTP_SERVER},
    "http.weight_routes": {"args": paths.SERVER_ARGS, "obj": UNKNOWN, "stock": paths.HTTP_SERVER},
    "launch.flags": {"args": paths.SERVER_ARGS},
    "launch.liveness": {"outputs": f"{_IO}.BatchTokenIDOutput"},
    "rows.forward": {
        "batch": paths.FORWARD_BATCH,
        "logits_metadata": "sglang.srt.layers.logits_processor.LogitsMetadata",
        "output": "sglang.srt.model_executor.model_runner.ModelRunnerOutput",
    },
    "rows.weights": {"recv_req": f"{_IO}.ReleaseMemoryOccupationReqInput", "updater": paths.UPDATER},
    "rows.weights:forget_rows": {"updater": paths.WEIGHTS},
    "rows.weights:resume": {"recv_req": f"{_IO}.ResumeMemoryOccupationReqInput"},
    "tilespec.attention.triton": {"batch": None, "drafts": paths.VERIFY_INPUT},
    "tilespec.draft.drafts": {"drafts": paths.DRAFT_INPUT, "output": paths.LOGITS_OUTPUT},
    "tilespec.draft.first_tokens": {"output": paths.LOGITS_OUTPUT},
    "tilespec.draft.vocabulary": {"drafts": _DRAFT_WORKER},
    "tilespec.extend.last_rows": {"drafts": _EXTENDS, "output": paths.LOGITS_OUTPUT},
    "tilespec.extend.offsets": {"spec_info": _EXTENDS},
    "tilespec.start.facts": {"args": paths.SERVER_ARGS},
    "tilespec.start.profile": {"batch": None, "known": None, "runner": _GRAPHS},
    "tilespec.start.warm_up": {"result": _RESULT},
    "tilespec.verify.accept": {"grammar_mask": "sglang.srt.constrained.base_grammar_backend.GrammarMask"},
    "tilespec.verify.graphs": {"spec_info": paths.VERIFY_INPUT},
    "tilespec.verify.logits": {"metadata": "sglang.srt.layers.logits_processor.LogitsMetadata"},
    "tilespec.verify.penalties": {
        "copied": paths.BATCH_SAMPLING,
        "params": "sglang.srt.sampling.sampling_params.SamplingParams",
    },
    "tilespec.worker": {"result": _RESULT, "state": f"{paths.SPECULATIVE}.adaptive_runtime_state.SpecRuntimeState"},
}
"""What some modules, or functions, call so; None is an object of ours."""
