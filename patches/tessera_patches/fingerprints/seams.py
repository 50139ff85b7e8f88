"""Verification: a claim is run whole."""

from tessera_patches.core.places import CHAT, PROTOCOL, TOKENIZER, WORKER
from tessera_patches.core.seam import Hook, Phase, Runs, Seam

SEAMS = (
    Seam(
        target=f"{TOKENIZER}._validate_one_request",
        hook=Hook.AROUND,
        phase=Phase.MAIN,
        feature="rows",
        handler="tessera_patches.fingerprints.whole_claims:check_claim",
        why="A claim may be as long as the longest response, and is never cut. A refusal names its prompt.",
        remove_when="SGLang takes prompts that fill the context where nothing is generated.",
        callers=(f"{TOKENIZER}._tokenize_one_request", f"{TOKENIZER}._batch_tokenize_and_process"),
        relied=(f"{WORKER}.get_worker_info",),  # what is kept for an answer
        runs=Runs.REQUEST,
    ),
    Seam(
        target="sglang.srt.entrypoints.http_server.app",
        hook=Hook.OBJECT,
        phase=Phase.MAIN,
        feature="rows",
        handler="tessera_patches.fingerprints.verify:add_routes",
        why="Adds /v1/toploc/verify; SGLang has no such route. Its own function writes the chats that are claimed.",
        remove_when="SGLang lets plugins register routes and error handlers.",
        relied=(f"{CHAT}._convert_to_internal_request", f"{CHAT}._append_assistant_prefix_to_prompt_ids"),
        writes=(f"{PROTOCOL}.ChatCompletionRequest.continue_final_message",),
        runs=Runs.HTTP,
    ),
)
