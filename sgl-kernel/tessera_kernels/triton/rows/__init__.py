"""Kernels that read the row store."""
