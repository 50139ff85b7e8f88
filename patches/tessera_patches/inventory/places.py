"""Where in SGLang the seams lie: the dotted paths that several share."""

from __future__ import annotations

MANAGERS = "sglang.srt.managers"
SCHEDULER = f"{MANAGERS}.scheduler.Scheduler"
PROCESSOR = f"{MANAGERS}.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
STREAMER = f"{MANAGERS}.scheduler_components.output_streamer.SchedulerOutputStreamer"
TOKENIZER = f"{MANAGERS}.tokenizer_manager.TokenizerManager"
UPDATER = f"{MANAGERS}.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
DRAFT_BACKENDS = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
SPECULATIVE = "sglang.srt.speculative"
WORKER = f"{MANAGERS}.tp_worker.TpModelWorker"
LOGPROBS = f"{MANAGERS}.scheduler_components.logprob_result_processor.SchedulerLogprobResultProcessor"
BATCH = f"{MANAGERS}.schedule_batch.ScheduleBatch"
LOGITS = "sglang.srt.layers.logits_processor.LogitsProcessor"
FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch"
