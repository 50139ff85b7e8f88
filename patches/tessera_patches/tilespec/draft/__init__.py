"""Drafting, with what each drafted token is worth."""
