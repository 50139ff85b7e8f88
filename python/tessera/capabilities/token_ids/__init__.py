"""Token ids beside an answer: those of its prompt, and those that were generated."""
