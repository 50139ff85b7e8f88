"""Kernels of Tessera. Nothing here imports SGLang, and importing this package imports nothing heavy.

- `registry`: the list of ops.
- `ops`: their definitions and references in torch.
- `triton`: their Triton kernels.
- `private_cache`: files in a folder that no other user can write to.
- `tree_links`: parents, children and ancestors of the nodes of draft trees.
- `driver`: whether there is a CUDA driver.
- `cpu`: the operators that the CUDA wheel of ``sgl_kernel`` lacks on a CPU; in none of our wheels.
"""
