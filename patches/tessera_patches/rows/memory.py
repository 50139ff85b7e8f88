"""Memory: count one row for each token when the KV pool is sized, then allocate the row store beside it."""

import logging
from collections.abc import Callable
from typing import Any

import psutil
from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE
from sglang.srt.layers.logits_processor import LogitsProcessor

from tessera import config
from tessera.delivery.outbox import Outbox
from tessera.delivery.outcome import RowStoreStats
from tessera.errors import StartRefused
from tessera.rows.due import DueReads
from tessera.rows.kinds import BY_READ, Placed
from tessera.rows.reader import RowReader
from tessera.rows.reads import ALL_ROWS, Pool, Top
from tessera.rows.service import RowService
from tessera.rows.store import RowStore, row_bytes
from tessera_patches.core.apply import start_error
from tessera_patches.engine import cache, ranks
from tessera_patches.engine.model import dtype, hidden_size, is_draft, runner_of
from tessera_patches.engine.options import options
from tessera_patches.rows import results, runtime

logger = logging.getLogger(__name__)


def count_rows(configurator: Any, kvc: Any) -> Any:
    """AFTER ``create_memory_pool_configurator``: a token costs its row's bytes, too, unless the host keeps them.

    Counted on every rank, though one holds the store: all must agree on the pool's size.
    """
    if not is_draft(kvc) and not config.flags.rows_on_host:
        cache.add_token_bytes(configurator, row_bytes(hidden_size(kvc), dtype(kvc)))
    return configurator


def allocate_rows(result: None, runner: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER ``ModelRunner.alloc_memory_pool``."""
    if is_draft(runner) or not ranks.keeps_rows(runner):
        return
    shape, on_host = (cache.slot_count(runner), hidden_size(runner)), config.flags.rows_on_host
    if on_host:
        refuse_beyond_memory(shape[0], row_bytes(shape[1], dtype(runner)), "--max-total-tokens")
    with runner.memory_saver_adapter.region(GPU_MEMORY_TYPE_KV_CACHE):  # given back and restored with the KV cache
        store = RowStore(*shape, dtype(runner), runner.device, on_host=on_host)
    topk, counted = config.flags.toploc_verification_topk, bool(options(runner).enable_metrics)
    reader = RowReader(store.rows, cache.slot_map(runner), topk, timed=counted)
    runtime.rows = store
    runtime.target_logits = frozenset(id(part) for part in runner.model.modules() if isinstance(part, LogitsProcessor))
    # Compile the kernels now, not at the first request.
    compiled = (Pool(0, 1), Top(0, 1, ALL_ROWS, 1))
    reader.start({BY_READ[type(read)]: [Placed(0, read)] for read in compiled}).result(wait=True)
    runtime.outbox = outbox = Outbox(_results(), _stats_of(store, runner))
    runtime.service = RowService(reader, outbox.put, store)
    stride = options(runner).speculative_num_draft_tokens or 1
    runtime.due = DueReads(results.tokens_to_next_read, stride)
    logger.info(
        "tessera: row store of %.1f MiB (%d slots, %.1f %% of the KV cache's bytes), %s",
        store.nbytes / 2**20,
        store.rows.shape[0],
        100 * store.nbytes / cache.kv_bytes(runner),
        "in the host's memory" if on_host else "counted when the pool was sized",
    )


def refuse_beyond_memory(rows: int, size: int, options: str) -> None:
    """Refuse to start if the rows do not fit into the host's free memory.

    Args:
        rows: the number of rows.
        size: bytes of a row.
        options: SGLang's options that reduce the number of rows, for the message.
    """
    wanted, free = rows * size, psutil.virtual_memory().available
    if wanted > free:
        raise start_error(
            f"rows of {rows} tokens in the host's memory take {wanted / 2**30:.1f} GiB, and {free / 2**30:.1f} are "
            f"free: lower {options}"
        )


def send_first_stats(scheduler: Any) -> None:
    """Send the row-store statistics to the main process, before the first request."""
    if runtime.outbox is not None:
        runtime.outbox.send_first_stats(counted=bool(options(runner_of(scheduler)).enable_metrics))


def _results() -> str:
    if config.results is None:
        raise StartRefused("the main process receives no rows")
    return config.results


def _stats_of(store: RowStore, runner: Any) -> Callable[[float], RowStoreStats]:
    kv_bytes = cache.kv_bytes(runner)

    def stats(read_seconds: float) -> RowStoreStats:
        used, slots = cache.used_slots(runner)
        beside_kv, on_host = (0, store.nbytes) if store.on_host else (store.nbytes, 0)
        on_host += 0 if runtime.host_rows is None else runtime.host_rows.nbytes
        return RowStoreStats(read_seconds, beside_kv, slots, used, ranks.replica(runner), kv_bytes, on_host)

    return stats
