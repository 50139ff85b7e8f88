"""The HTTP application: routes, requests, errors."""
