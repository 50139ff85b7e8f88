"""What ``tessera_patches.engine`` touches, and our classes inherit, are attributes of the installed SGLang."""

from __future__ import annotations

import pytest
from packaging.version import Version
from sglang.srt.server_args import ServerArgs

from tessera_patches.core import lock
from tessera_patches.inventory import DECLARED, SEAMS
from tessera_testing.engine_reads import Read, inherited, reads
from tessera_testing.sglang_classes import attributes, given

UNUSED = {seam.handler for seam in DECLARED} - {seam.handler for seam in SEAMS}
"""Handlers of other versions alone."""
NOT_READ = {handler.removeprefix("tessera_patches.engine.").replace(":", ".") for handler in UNUSED}
ASSEMBLED = {
    # Put together of others since 0.5.20.
    "sglang.srt.server_args.ServerArgs": {*getattr(ServerArgs, "__struct_fields__", ())},
    "sglang.srt.speculative.eagle_info.EagleDraftExtendInput": given(
        "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner", "forward_batch.spec_info"
    ),
}
"""Fields that objects of a class are given elsewhere; its own source has none of them."""
SINCE = {"token_indices_to_pool": "0.5.19", "use_fp32_lm_head_output": "0.5.23"}
"""The first SGLang that has what is read with a default. What is there is looked for, as all else."""
LATER = {name for name, version in SINCE.items() if Version(version) > Version(lock.installed_version())}
READS = [
    read for read in sorted({*reads(), *inherited()}) if read.function not in NOT_READ and read.attribute not in LATER
]


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
