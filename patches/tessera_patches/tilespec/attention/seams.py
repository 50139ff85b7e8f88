"""Attention of verifications."""

from tessera_patches.core.places import TRITON
from tessera_patches.core.seam import Hook, Runs, Seam

SEAMS = (
    Seam(
        target=TRITON,
        hook=Hook.CLASS,
        feature="tilespec",
        handler="tessera_patches.tilespec.attention.triton:make_ragged",
        why="Attention of verifications whose requests have different numbers of tokens.",
        remove_when="SGLang's Triton attention has ragged verification.",
        runs=Runs.START,
        runs_with="ragged_triton",
        callers=("sglang.srt.layers.attention.attention_registry.create_triton_backend",),
        relied=("sglang.srt.layers.attention.verify_mask.VerifyMask",),
        writes=(f"{TRITON}.qo_indptr", f"{TRITON}.mask_indptr"),
        differs="What fills offsets in takes other arguments: there is a plan of the slots.",
    ),
)
