"""What tests ask of a server besides tokens."""

from __future__ import annotations

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tessera.launching.server import Server


def flush_cache(server: Server) -> None:
    """Forget prefixes and rows, once no request runs.

    Raises:
        httpx.HTTPStatusError: some still ran after 30 s.
    """
    httpx.post(f"{server.url}/flush_cache?timeout=30", timeout=60).raise_for_status()


def metrics(server: Server) -> list[Sample]:
    """Every sample of ``/metrics``."""
    text = httpx.get(f"{server.url}/metrics", timeout=60).raise_for_status().text
    families: list[Metric] = list(text_string_to_metric_families(text))
    return [sample for family in families for sample in family.samples]
