"""What of SGLang the CPU engine serves with our additions: decided from the options, without SGLang."""
