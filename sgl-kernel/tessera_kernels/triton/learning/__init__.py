"""Kernels that update the acceptance model."""
