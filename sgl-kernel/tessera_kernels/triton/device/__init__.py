"""Shared by kernels: device functions, launchers, pinned memory."""
