"""Memory: count one row for each token when the KV pool is sized, then allocate the row store beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE
from sglang.srt.layers.logits_processor import LogitsProcessor

from tessera import config
from tessera.delivery.outbox import Outbox
from tessera.delivery.outcome import Vitals
from tessera.errors import StartRefused
from tessera.fingerprint.chunks import ALL_ROWS
from tessera.fingerprint.watch import Watch
from tessera.rows.reader import RowReader
from tessera.rows.service import RowService
from tessera.rows.store import RowStore, row_bytes
from tessera_kernels.ops.rows.pool_rows import Reduce, Span
from tessera_kernels.ops.rows.top_rows import Chunk
from tessera_patches.rows import results, runtime

logger = logging.getLogger(__name__)


def count_rows(cell_bytes: int, configurator: Any, kvc: Any, num_layers: int) -> int:
    """AFTER ``DefaultPoolConfigurator._compute_cell_size``: bytes that one token costs, its row included.

    Counted on every tensor-parallel rank, though one rank holds the store: all must agree on the pool's size.
    """
    return int(cell_bytes) + (0 if kvc.is_draft_worker else row_bytes(kvc.model_config.hidden_size, kvc.model_dtype))


def allocate_rows(result: None, runner: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER ``ModelRunner.alloc_memory_pool``."""
    if runner.is_draft_worker or runner.ps.attn_tp_rank != 0:
        return
    pool = runner.token_to_kv_pool
    with runner.memory_saver_adapter.region(GPU_MEMORY_TYPE_KV_CACHE):  # given back and restored with the KV cache
        store = RowStore(pool.size + pool.page_size, runner.model_config.hidden_size, runner.dtype, runner.device)
    topk, counted = config.flags.toploc_verification_topk, bool(runner.server_args.enable_metrics)
    reader = RowReader(store.rows, runner.req_to_token_pool.req_to_token, topk, timed=counted)
    runtime.rows = store
    runtime.target_logits = frozenset(id(part) for part in runner.model.modules() if isinstance(part, LogitsProcessor))
    # Compile the kernels now, not at the first request.
    reader.start([Span(0, 0, 1, Reduce.MEAN)], (), [Chunk(0, 0, 1, ALL_ROWS, 1)]).take(wait=True)
    outbox = Outbox(_results(), _vitals_of(store, runner) if counted else None)
    outbox.put([], None)
    outbox.send()  # the gauges are there before the first request
    runtime.outbox = outbox
    runtime.service = RowService(reader, outbox.put, lambda: store.broken, store.rows.shape[1], topk)
    runtime.watch = Watch(results.lacking, stride=runner.server_args.speculative_num_draft_tokens or 1)
    logger.info(
        "tessera: row store of %.1f MiB (%d slots, %.1f %% of the KV cache's bytes), counted when the pool was sized",
        store.nbytes / 2**20,
        store.rows.shape[0],
        100 * store.nbytes / _kv_bytes(pool),
    )


def _results() -> str:
    if config.results is None:
        raise StartRefused("the main process receives no rows")
    return config.results


def _vitals_of(store: RowStore, runner: Any) -> Callable[[float], Vitals]:
    allocator, replica = runner.token_to_kv_pool_allocator, runner.ps.dp_rank or 0

    def vitals(read_seconds: float) -> Vitals:
        used = allocator.size - allocator.available_size()
        return Vitals(read_seconds, store.nbytes, allocator.size, used, replica)

    return vitals


def _kv_bytes(pool: Any) -> int:
    """SGLang's pools of keys and values say two sizes, its pools of latents (MLA, DSA) one."""
    sizes = pool.get_kv_size_bytes()
    return int(sum(sizes) if isinstance(sizes, tuple) else sizes)
