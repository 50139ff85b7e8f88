"""Draft tokens: their choice, their layout for the verification, and the state from step to step."""
