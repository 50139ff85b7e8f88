"""Draft-extends: the draft model reads all rows of what was verified, and computes one of each request."""

from tessera_patches.core.places import FORWARD_BATCH, LOGITS, LOGITS_OUTPUT, SPECULATIVE, TRITON, WORKERS
from tessera_patches.core.seam import Hook, Runs, Seam

_LLAMA = "sglang.srt.models.llama"
_REMOVE = "SGLang's draft-extends compute logits of last accepted rows alone."


def _forward(
    target: str,
    why: str,
    callers: tuple[str, ...],
    relied: tuple[str, ...],
    *writes: str,
    differs: str = "",
    runs_with: str = "",
) -> Seam:
    return Seam(
        target=f"{target}.forward",
        hook=Hook.METHOD,
        feature="tilespec",
        handler="tessera_patches.tilespec.extend.last_rows:compute_last_rows_only",
        why=why,
        remove_when=_REMOVE,
        callers=callers,
        relied=relied,
        writes=writes,
        differs=differs,
        runs=Runs.START,
        runs_with=runs_with,
    )


SEAMS = (
    _forward(
        f"{_LLAMA}.LlamaForCausalLM",
        "The draft model's, whatever its class: logits of last accepted rows alone.",
        ("sglang.srt.model_executor.runner.eager_runner.EagerRunner._execute_extend",),
        (f"{LOGITS}._get_pruned_states", f"{LOGITS}.forward"),
        f"{SPECULATIVE}.eagle_info.EagleDraftExtendInput.select_index",
        f"{FORWARD_BATCH}.next_token_logits_buffer",
        f"{LOGITS_OUTPUT}.next_token_logits",
        f"{LOGITS_OUTPUT}.hidden_states",
        differs="Graphs select last accepted rows themselves in some; these are taken.",
    ),
    _forward(
        f"{_LLAMA}.LlamaMLP",
        "That of the draft model's last layer, or of another model's with the same parts: of last accepted rows alone.",
        (),
        (f"{_LLAMA}.LlamaDecoderLayer.forward", f"{_LLAMA}_eagle3.LlamaDecoderLayer.forward"),
        runs_with="last_mlps",
    ),
    _forward(
        "sglang.srt.layers.linear.RowParallelLinear",
        "Attention's last product in a draft model of one layer: zeros for rows that attention computed nothing for.",
        (),
        (f"{_LLAMA}.LlamaAttention",),
        runs_with="last_queries",
    ),
    Seam(
        target=TRITON,
        hook=Hook.CLASS,
        feature="tilespec",
        handler="tessera_patches.tilespec.extend.offsets:fuse_extend",
        why="Offsets of draft-extends from one kernel instead of ten, and one query for each request.",
        remove_when=_REMOVE,
        runs=Runs.START,
        runs_with="triton_extends",
        callers=("sglang.srt.layers.attention.attention_registry.create_triton_backend",),
        relied=(f"{WORKERS}.EagleDraftWorker.init_attention_backend",),
        differs="What fills offsets in takes other arguments, and decoding needs other fields.",
    ),
)
