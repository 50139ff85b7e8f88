"""What is new in the installed SGLang, and nobody has decided about. ``python -m tessera_testing.news`` prints JSON."""

from __future__ import annotations

import json
from importlib import metadata
from typing import NamedTuple

from packaging.requirements import Requirement

COMPUTED = {"stop_strs", "stop_regex_strs", "stop_str_max_len", "stop_regex_max_len", "is_normalized"}
"""Fields of the sampling parameters that SGLang fills itself."""
REFUSED = {"watermark", "kv_hints", "token_indices_to_pool"}
"""Fields of a request that some versions of SGLang have, and that are refused: not yet tested. No check names them."""


class News(NamedTuple):
    """Of a release.

    Attributes:
        python: the versions of Python that it supports, as its wheel says.
        torch: the one version of torch that it needs.
        seams: how many seams it has.
        fit: how many of them are as they were reviewed in some version.
        changed: functions, classes and fields with a shape that nobody has reviewed, by dotted path.
        gone: one sentence for each that is not there, or that its caller no longer reaches.
        options: fields of ``ServerArgs`` in no list.
        fields: fields of ``GenerateReqInput`` in no list.
        parameters: fields of ``SamplingParams`` without bounds.
        refused: what is refused for its version: no test has tried these with it.
        allowed: what is not, and is with some other version.
    """

    python: str
    torch: str
    seams: int
    fit: int
    changed: list[str]
    gone: list[str]
    options: list[str]
    fields: list[str]
    parameters: list[str]
    refused: list[str]
    allowed: list[str]


def news() -> News:
    """Compare the installed release with what the lock file and the lists have."""
    import tessera_kernels.cpu

    tessera_kernels.cpu.enable()  # without it, SGLang cannot be imported on a machine without a GPU
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.server_args import ServerArgs

    from tessera import request_fields, sampling
    from tessera_patches.inventory import SEAMS
    from tessera_patches.launch import default_deny
    from tessera_testing.refused_versions import to_try

    changed, gone, fit = _shapes()
    options = getattr(ServerArgs, "__struct_fields__", None) or ServerArgs.__dataclass_fields__
    fields = {*GenerateReqInput.__dataclass_fields__} - {*request_fields.KNOWN, *REFUSED}
    parameters = {*SamplingParams.__struct_fields__} - {*sampling.NAMES, *sampling.LATER, *COMPUTED}
    unknown = default_deny.lists().unknown(options, default_deny.FEATURES)
    tried = to_try(metadata.version("sglang"))
    return News(*_needs(), len(SEAMS), fit, changed, gone, unknown, sorted(fields), sorted(parameters), *tried)


def _needs() -> tuple[str, str]:
    needs = map(Requirement, metadata.requires("sglang") or ())
    torch = next(str(one.specifier) for one in needs if one.name == "torch" and not one.marker)
    return metadata.metadata("sglang")["Requires-Python"], torch.removeprefix("==")


def _shapes() -> tuple[list[str], list[str], int]:
    """Paths with a new shape, sentences about what is gone, and how many seams fit."""
    from tessera_patches.core import lock, source
    from tessera_patches.inventory import SEAMS

    shapes, guards = lock.read(), lock.guards()
    changed: set[str] = set()
    gone: list[str] = []
    fit = 0
    for seam in SEAMS:
        missing = lock.missing_callers(seam)
        new: list[str] = []
        for path in seam.guards:
            try:
                entry = lock.entry_of(path, guards[path])
            except source.SourceMissing as error:
                missing.append(str(error))
                continue
            if all(one["shape"] != entry for one in shapes.get(path, ())):
                new.append(path)
        changed.update(new)
        gone += missing
        fit += not missing and not new
    return sorted(changed), list(dict.fromkeys(gone)), fit


if __name__ == "__main__":
    print(json.dumps(news()._asdict()))  # noqa: T201 - the command's output
