"""Kernels of Tessera. Nothing here imports SGLang, and importing this package imports nothing heavy.

- `registry`: the list of ops.
- `ops`: their definitions and references in torch.
- `triton`: their Triton kernels.
- `cpu`: the operators that the CUDA wheel of ``sgl_kernel`` lacks on a CPU.
"""
