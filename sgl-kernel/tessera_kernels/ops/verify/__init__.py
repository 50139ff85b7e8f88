"""Rows of a verification: selection, packing, offsets, scattering."""
