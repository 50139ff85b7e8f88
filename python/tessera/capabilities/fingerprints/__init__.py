"""TOPLOC fingerprints of responses (arXiv 2501.16007): built, read and verified without native code."""
