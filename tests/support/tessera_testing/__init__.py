"""What tests, benchmarks and examples share: references, tiny models, servers by their options, hostile requests."""
