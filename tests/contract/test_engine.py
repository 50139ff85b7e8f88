"""What ``tessera_patches.engine`` touches, and our classes inherit, are attributes of the installed SGLang."""

from __future__ import annotations

import pytest
from sglang.srt.server_args import ServerArgs

from tessera_patches.engine.options import RESOLVES_LATER
from tessera_patches.inventory import DECLARED, SEAMS
from tessera_testing.engine_reads import Read, attributes, inherited, reads

# A view of the options has the model, and since 0.5.20 the options themselves do not.
VIEWS = {"model.facts"} if RESOLVES_LATER else set()
UNUSED = {seam.handler for seam in DECLARED} - {seam.handler for seam in SEAMS}
"""Handlers of other versions alone."""
NOT_READ = VIEWS | {handler.removeprefix("tessera_patches.engine.").replace(":", ".") for handler in UNUSED}
ASSEMBLED = {"sglang.srt.server_args.ServerArgs": {*getattr(ServerArgs, "__struct_fields__", ())}}
"""Fields that a class is given where it is put together of others, since 0.5.20; its own source has none of them."""
READS = [read for read in sorted({*reads(), *inherited()}) if read.function not in NOT_READ]


@pytest.mark.parametrize(
    "read", READS, ids=lambda read: f"{read.function}-{read.owner.rpartition('.')[2]}.{read.attribute}"
)
def test_the_class_has_the_attribute(read: Read) -> None:
    """The id says what is missing: function, class and attribute."""
    assert read.owner, "annotate the object with its class"
    assert read.attribute in attributes(read.owner) | ASSEMBLED.get(read.owner, set())


def test_a_missing_attribute_is_found() -> None:
    """Fields that are only set in a method count, and no others do."""
    names = attributes("sglang.srt.managers.schedule_batch.Req")
    assert "req_pool_idx" in names | attributes("sglang.srt.managers.schedule_batch.ReqKvInfo")
    assert "req_pool_index" not in names
