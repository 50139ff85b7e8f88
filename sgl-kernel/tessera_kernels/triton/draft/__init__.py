"""Kernels of draft tokens."""
