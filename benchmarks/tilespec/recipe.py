"""The sizes of the rig: what is trained, and what it is widened to. Full, and a smoke form for a CPU."""

from dataclasses import dataclass

from tiny_training.shapes import Shape

PARTS = ("target", "draft", "eagle", "eagle3")
"""What is trained, in this order: all others learn from the target."""


@dataclass(frozen=True)
class Recipe:
    """Shapes, batches and amounts. Windows are in tokens, rates are AdamW's.

    `draft_vocabulary` is how many tokens the wide EAGLE-3 head knows, as published ones do: those that the narrow
    target has, and copies of the never-used one. `packages`: whether installed packages are read beside the standard
    library. `seconds` is the time that each part trains for; `steps`, where it is not 0, fixes the number of steps
    instead.
    """

    target: Shape
    draft: Shape
    head: Shape
    wide_target: Shape
    wide_draft: Shape
    wide_head: Shape
    draft_vocabulary: int
    inner_layers: tuple[int, ...]
    packages: bool
    corpus_megabytes: int
    tokenizer_megabytes: int
    rows: int
    window: int
    head_rows: int
    head_window: int
    head_steps: int
    pool: int
    seconds: dict[str, float]
    steps: int
    target_rate: float
    draft_rate: float
    prompt_tokens: int
    prompts: int


FULL = Recipe(
    target=Shape(hidden=1024, intermediate=2816, layers=8, heads=8, kv_heads=2, head_dim=128, vocabulary=16384),
    draft=Shape(hidden=512, intermediate=2048, layers=2, heads=8, kv_heads=2, head_dim=64, vocabulary=16384),
    head=Shape(hidden=1024, intermediate=2816, layers=1, heads=8, kv_heads=2, head_dim=128, vocabulary=16384),
    # Llama-3.1-8B, Llama-3.2-1B, and one layer of the first.
    wide_target=Shape(
        hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8, head_dim=128, vocabulary=128256
    ),
    wide_draft=Shape(hidden=2048, intermediate=8192, layers=16, heads=32, kv_heads=8, head_dim=64, vocabulary=128256),
    wide_head=Shape(hidden=4096, intermediate=14336, layers=1, heads=32, kv_heads=8, head_dim=128, vocabulary=128256),
    draft_vocabulary=32_000,
    inner_layers=(1, 3, 6),
    packages=True,
    corpus_megabytes=200,
    tokenizer_megabytes=40,
    rows=64,
    window=1024,
    head_rows=64,
    head_window=512,
    head_steps=5,
    pool=8192,
    seconds={"target": 240, "draft": 90, "eagle": 140, "eagle3": 140},
    steps=0,
    target_rate=1.5e-3,
    draft_rate=1e-3,
    prompt_tokens=256,
    prompts=256,
)

SMOKE = Recipe(
    target=Shape(hidden=64, intermediate=96, layers=4, heads=4, kv_heads=2, head_dim=16, vocabulary=512),
    draft=Shape(hidden=32, intermediate=64, layers=1, heads=4, kv_heads=2, head_dim=8, vocabulary=512),
    head=Shape(hidden=64, intermediate=96, layers=1, heads=4, kv_heads=2, head_dim=16, vocabulary=512),
    wide_target=Shape(hidden=128, intermediate=224, layers=6, heads=8, kv_heads=4, head_dim=16, vocabulary=700),
    wide_draft=Shape(hidden=64, intermediate=128, layers=2, heads=8, kv_heads=4, head_dim=8, vocabulary=700),
    wide_head=Shape(hidden=128, intermediate=224, layers=1, heads=8, kv_heads=4, head_dim=16, vocabulary=700),
    draft_vocabulary=600,
    inner_layers=(0, 1, 2),
    packages=False,
    corpus_megabytes=1,
    tokenizer_megabytes=1,
    rows=8,
    window=64,
    head_rows=4,
    head_window=64,
    head_steps=3,
    pool=32,
    seconds={},
    steps=24,
    target_rate=4e-3,
    draft_rate=4e-3,
    prompt_tokens=32,
    prompts=8,
)


RECIPES = {"full": FULL, "smoke": SMOKE}
