"""One folder for each thing that a request can ask for, listed in `tessera.capabilities.registry`."""
