"""The thread that builds fingerprints: a job that cannot be done fails alone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from tessera.capabilities.fingerprints import codec
from tessera.capabilities.fingerprints.builder import Builder
from tessera.rows.reads import Points

GOOD = Points(np.arange(128) * 1000, np.full(128, 0x4040, np.uint16))
BAD = Points(np.zeros(0, np.int64), np.zeros(0, np.uint16))
"""Of a prompt without tokens: no modulus, no polynomial."""


def test_a_bad_job_fails_alone() -> None:
    """Whatever waits beside it is built and verified, and gets its own result."""

    async def ask() -> list[Any]:
        builder = Builder()
        first = builder.build([GOOD] * 5000)  # while the thread is busy with these, the others come together
        builds = [builder.build([GOOD] * count) for count in (1, 2)]
        broken = builder.build([BAD])
        builds += [builder.build([GOOD] * 3)]
        claimed = codec.build([GOOD])
        verified = asyncio.ensure_future(builder.verify(claimed, [GOOD]))
        await first
        return await asyncio.gather(*builds, broken, verified, return_exceptions=True)

    *builds, broken, verified = asyncio.run(ask())
    expected = codec.build([GOOD])[0].to_base64()
    assert builds == [[expected] * count for count in (1, 2, 3)]
    assert isinstance(broken, ZeroDivisionError)
    assert not isinstance(verified, BaseException)
    assert len(verified) == 1
