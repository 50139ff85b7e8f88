"""Verification of drafts of different sizes, and what is accepted."""
