"""Counts what hostile requests got."""

from __future__ import annotations

from collections import Counter

import httpx


class Tally(Counter[str]):
    """How many answers of each kind: ``"400 bad_request"``, or the status alone where an answer has no code."""

    def add(self, answer: httpx.Response, verdict: str = "") -> None:
        """One more; ``verdict`` says what a 200 was."""
        returned = {} if answer.status_code == httpx.codes.OK else answer.json()
        error = returned.get("error", returned)
        self[f"{answer.status_code} {verdict or error.get('code', '')}".strip()] += 1
