"""Real servers and real tiny models for tests: ours and those of users."""
