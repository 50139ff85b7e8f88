"""Before anything is served: graphs rehearsed, steps measured."""
