"""Acceptance of verified draft tokens."""
