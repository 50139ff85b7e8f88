"""``tessera doctor --url``: what it says of the counts of calls."""

from __future__ import annotations

import pytest

from tessera.cli.doctor_server import _seams
from tessera_patches.inventory import SEAMS

ENDED, ANSWERED = (
    next(seam.target for seam in SEAMS if seam.target.endswith(f".{name}"))
    for name in ("_maybe_collect_routed_experts", "_handle_batch_output")
)


@pytest.mark.parametrize(("ended", "answered", "fine"), [(0, 0, True), (1, 0, False), (1, 1, True)])
def test_answers_that_nobody_looked_at(ended: int, answered: int, *, fine: bool) -> None:
    """Before the first request all is well; after one that ended, the hook on answers must have been called."""
    calls = {"complete": False, "counts": {ENDED: ended, ANSWERED: answered}}
    *_, (found, subject, said) = _seams({"on": ["rows"], "seams": {}, "calls": calls})
    assert (found, subject) == (fine, "calls")
    assert ("did not call our hook" in said) is not fine
