"""What ``benchmarks/soak.py`` counts, and the clients that it annoys the server with."""
