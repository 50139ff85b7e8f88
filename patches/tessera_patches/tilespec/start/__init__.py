"""Before anything is served: steps warmed up and measured."""
