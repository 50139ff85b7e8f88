"""Verification of fingerprints."""
