"""How many of our files a request passes: few, or the next capability will touch many."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tessera_testing.generate import generate
from tessera_testing.pool import ServerPool
from tessera_testing.waiting import wait_until

HIDDEN = "--enable-return-hidden-states"
FILES = {
    "python/tessera/answer_bytes.py",
    "python/tessera/capabilities/embed/capability.py",
    "python/tessera/capabilities/embed/options.py",
    "python/tessera/delivery/outcome.py",
    "python/tessera/rows/generations.py",
    "python/tessera/rows/kinds.py",
    "python/tessera/telemetry.py",
    "sgl-kernel/tessera_kernels/ops/rows/pool_rows.py",
    "sgl-kernel/tessera_kernels/registry.py",
}
"""What runs for an embedding, and not for a plain request."""
LEAST = 3
"""Processes: HTTP, scheduler, detokenizer."""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring")
def test_files_for_an_embedding(server_pool: ServerPool, tmp_path: Path) -> None:
    """Those of all processes, on a server that has answered both kinds of requests before."""
    env = {"TESSERA_TEST_FAULT": "used-files", "TESSERA_TEST_FILES": str(tmp_path)}
    server = server_pool.get(HIDDEN, env=env, spawned=True)

    def used(kind: str, prompt: list[int], **options: Any) -> set[str]:
        generate(server, prompt, 4, **options)
        switch(tmp_path, kind)
        generate(server, prompt[::-1], 4, **options)
        switch(tmp_path, f"{kind}.done")
        return {line for file in tmp_path.glob(f"[0-9]*-{kind}") for line in file.read_text().split()}

    plain = used("plain", [5, 6, 7, 8])
    assert "patches/tessera_patches/rows/forward.py" in plain
    assert used("embedding", [9, 10, 11, 12], return_embedding=True) - plain == FILES


def switch(folder: Path, label: str) -> None:
    """Have all processes count for this, from now on."""
    known = {file.name.partition("-")[0] for file in folder.glob("[0-9]*-*")}
    (folder / "new").write_text(label)
    (folder / "new").rename(folder / "label")
    wait_until(lambda: len([*folder.glob(f"[0-9]*-{label}")]) >= max(LEAST, len(known)))
