"""What a scheduler process keeps of its target model for injection."""

from typing import Any

from tessera.capabilities.inject.place import Plan

embedding: Any = None
"""The embedding layer, by `tessera_patches.inject.proof`."""
placed_at_embedding = False
"""Vectors take their places in what this layer returns, not in ``input_embeds``."""
next_plan: Plan | None = None
"""What the layer's next call injects."""
