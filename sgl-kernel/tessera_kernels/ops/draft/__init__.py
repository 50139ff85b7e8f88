"""Draft tokens: chosen, laid out, and kept for the next step."""
