"""Draft-extends: what a draft model reads of what was verified."""
