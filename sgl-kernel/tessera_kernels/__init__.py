"""Kernels of Tessera: Triton kernels with torch twins; CPU stand-ins for what the CUDA wheel of ``sgl_kernel`` lacks.

Nothing here imports SGLang, and importing this package imports nothing heavy.
"""
