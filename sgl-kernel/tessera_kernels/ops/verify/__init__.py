"""The rows of a verification: which, packed, and spread out again."""
