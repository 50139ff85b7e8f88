"""Python imports this first in every process of the tests' servers: it breaks Tessera as TESSERA_TEST_FAULT says.

And it keeps starts short: looking for garbage is a fifth of what the engine's imports take, and scikit-learn, which
transformers imports where it is installed, another tenth.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any


def _version() -> None:
    """An SGLang that nobody reviewed."""
    from tessera_patches.core import lock

    lock.installed_version = lambda: "0.5.99"


def _seam() -> None:
    """A function that differs from the reviewed one."""
    from tessera_patches.core import lock

    original = lock.current

    def changed(seam: Any, root: Any = None) -> dict[str, lock.Entry]:
        entries = original(seam, root)
        if seam.target.endswith("ModelRunner.forward"):
            entries[seam.target]["parameters"] = ["self", "renamed"]
        return entries

    lock.current = changed


def _taken() -> None:
    """Another plugin's hook sits on our target already."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    HookRegistry._patched.add("sglang.srt.server_args.ServerArgs.add_cli_args")


def _unreached() -> None:
    """SGLang no longer comes to the seams that TESSERA_TEST_UNREACHED names: hooks are applied to nothing."""
    import unreached  # type: ignore[import-not-found]
    from sglang.srt.plugins.hook_registry import HookRegistry

    apply_target, named = HookRegistry._apply_target, os.environ["TESSERA_TEST_UNREACHED"].split()

    def apply_unless_unreached(target: str, hooks: list[Any]) -> None:
        if target not in named:
            apply_target(target, hooks)

    HookRegistry._apply_target = apply_unless_unreached
    unreached.leave_out([name for name in named if "(" in name])


def _used_files() -> None:
    """No fault: which of our files run is noted."""
    import used_files  # type: ignore[import-not-found]

    used_files.count_files()


def _unclassified() -> None:
    """SGLang has an option that nobody has looked at: --stream-interval."""
    from tessera_patches.launch import default_deny

    known = default_deny.lists()
    known.allowed.remove("stream_interval")
    default_deny.lists = lambda: known


def _permit() -> None:
    """No option or model is refused by its name: what happens then is looked at (benchmarks/refused_options.py)."""
    from tessera import config, refusal
    from tessera_patches import support
    from tessera_patches.core import lock
    from tessera_patches.launch import default_deny, server_args

    # Features for which this SGLang has no hooks stay off: an option of that name is SGLang's own.
    lacking, derive = support.absent(lock.installed_version()), config.Settings.from_server_args

    def without_lacking(args: Any, flags: Any) -> config.Settings:
        settings = derive(args, flags)
        for name in lacking:
            setattr(settings, name, False)
        return settings

    config.Settings.from_server_args = without_lacking  # type: ignore[method-assign]
    support.refused = lambda *_: []
    refusal.Refusal.applies_to = lambda *_: False  # type: ignore[method-assign]
    default_deny.refused = lambda *_: []
    server_args._refused_model = lambda *_: []
    server_args._set = lambda *_: []

    from sglang.srt.plugins.hook_registry import HookRegistry

    apply_target = HookRegistry._apply_target

    def apply_for_any_pool(target: str, hooks: list[Any]) -> None:
        if target.endswith("ModelRunner.alloc_memory_pool"):
            _size_any_pool()
        apply_target(target, hooks)

    HookRegistry._apply_target = apply_for_any_pool


def _size_any_pool() -> None:
    """Rows are counted beside KV caches without a full pool, or whose bytes SGLang does not say, too."""
    from tessera_patches.engine import cache

    kv_bytes, add_full_bytes = cache.kv_bytes, cache._add_full_bytes
    cache.kv_bytes = lambda runner: kv_bytes(runner) or 1
    cache._add_full_bytes = lambda sizes, count: add_full_bytes(sizes, count) if sizes._full_layers_num else None


def _ids_again() -> None:
    """A model that computes from its ids, and not from their embeddings alone."""
    from sglang.srt.models import llama

    original = llama.LlamaModel.forward

    def forward(self: Any, ids: Any, positions: Any, batch: Any, input_embeds: Any = None, **kwargs: Any) -> Any:
        embeds = self.embed_tokens(ids) if input_embeds is None else input_embeds
        return original(self, ids, positions, batch, embeds + ids[:, None] / 1000, **kwargs)

    llama.LlamaModel.forward = forward


def _bug() -> None:
    """Our own code raises at load."""
    from tessera_patches import inventory

    inventory.seams = None  # type: ignore[assignment]


def _log_logits() -> None:
    """Each computation of logits leaves a line in the log: no fault, but the same way to look inside."""
    from sglang.srt.layers import logits_processor

    original = logits_processor.LogitsProcessor._get_logits

    def replaced(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        sys.stderr.write(f"logits of {len(hidden_states)} rows\n")
        return original(self, hidden_states, *args, **kwargs)

    logits_processor.LogitsProcessor._get_logits = replaced


def _log_last_mlps() -> None:
    """How many rows the last layer's MLP of the draft model computes, and whether they were picked."""
    from tessera_patches.tilespec.extend import last_rows

    narrowed = last_rows._on_selected_rows

    def replaced(original: Any, selected: Any) -> Any:
        def logged(x: Any) -> Any:
            sys.stderr.write(f"last MLP of {len(x)} rows{', picked' if selected.value is not None else ''}\n")
            return original(x)

        return narrowed(logged, selected)

    last_rows._on_selected_rows = replaced


def _pick_as_on_gpu() -> None:
    """Chains pick tokens by the function that SGLang has for GPUs, which ours wraps; its reference in torch runs."""
    from tessera import config
    from tessera.tilespec import scores

    create, conditions = scores.Scores.__init__, config.conditions_of

    def replaced(self: scores.Scores, *args: Any) -> None:
        sys.modules["sglang.srt.speculative.eagle_worker_v2"]._is_cuda = True  # type: ignore[attr-defined]
        sys.modules["tessera_patches.tilespec.draft.drafts"].is_cuda = lambda: True  # type: ignore[attr-defined]
        create(self, *args)

    def as_on_gpu(args: Any, flags: Any) -> tuple[str, ...]:
        return tuple(name.replace("cpu_chains", "cuda_chains") for name in conditions(args, flags))

    scores.Scores.__init__ = replaced  # type: ignore[assignment, method-assign]
    config.conditions_of = as_on_gpu


def _say_deterministic() -> None:
    """Our part of exact mode, on a server without SGLang's: it refuses --enable-deterministic-inference on a CPU."""
    from tessera import config

    derive = config.Settings.from_server_args

    def replaced(args: Any, flags: Any) -> config.Settings:
        settings = derive(args, flags)
        settings.deterministic = True
        return settings

    config.Settings.from_server_args = replaced  # type: ignore[method-assign]


def _pooling() -> None:
    """Ids that begin with "span-fault" have no reads; "start-fault" and "wait-fault" break their step's read."""
    from tessera.rows import reader, service, store

    reads_of, start, finished = service.RowService._wanted, reader.RowReader.start, service.RowService.note_finished
    planned: list[str] = []

    class BrokenRead(reader.Read):
        def result(self, *, wait: bool = False) -> reader.Fetched | None:  # noqa: ARG002
            raise RuntimeError("planted")

    def faulty_reads_of(self: service.RowService, request: service.Finished) -> Any:
        if "span-fault" in request.key:
            raise RuntimeError("planted")
        return reads_of(self, request)

    def faulty_finished(self: service.RowService, request: service.Finished) -> None:
        planned.append(request.key.split("-fault")[0].split()[-1])
        finished(self, request)

    def faulty_start(self: reader.RowReader, reads: Any) -> reader.Read:
        faults = set(planned)
        planned.clear()
        if "start" in faults:
            raise RuntimeError("planted")
        read = start(self, reads)
        return BrokenRead(read._fetched) if "wait" in faults else read

    service.RowService._wanted = faulty_reads_of  # type: ignore[method-assign]
    service.RowService.note_finished = faulty_finished  # type: ignore[method-assign]
    reader.RowReader.start = faulty_start  # type: ignore[method-assign]
    allocate = store.RowStore.__init__

    def allocate_and_log(self: store.RowStore, *args: Any, **kwargs: Any) -> None:
        _log_logits()  # SGLang is imported by now
        allocate(self, *args, **kwargs)

    store.RowStore.__init__ = allocate_and_log  # type: ignore[method-assign]
    _say_deterministic()


def _dice() -> None:
    """TileSpec decides by dice: every number of drafted tokens, and every size that can verify them.

    Where there are several ranks, each would throw others, and draws coins of its own when it accepts drafts.
    """
    import multiprocessing
    import random

    from tessera.tilespec.policy import Choice, Policy
    from tessera.tilespec.scores import Scores

    dice = random.Random(1)
    search, create = Policy.search, Scores.__init__

    def diced(self: Policy, bs: int, kv_tokens: int) -> Choice:
        steps = dice.choice(self.steps)
        full = bs * (steps + 1)
        tiers = self.costs.tiers.sizes if self.costs.tiers else []
        sizes = [size for size in tiers if steps and bs <= size < full]
        tier = dice.choice([None, *sizes[dice.randrange(len(sizes)) :][:1]] if sizes else [None])
        choice = search(self, bs, kv_tokens)
        return choice._replace(steps=steps, tier=tier, tokens=tier or full)

    def create_and_toss(self: Scores, *args: Any) -> None:
        create(self, *args)
        dice.seed(multiprocessing.current_process().name)  # unknown when this file is imported
        _toss(dice.random())

    _always(diced)
    Scores.__init__ = create_and_toss  # type: ignore[assignment, method-assign]


def _always(search: Any) -> None:
    """Every step of TileSpec searches all options, by this function."""
    from tessera.tilespec.policy import Policy

    Policy.reuse = lambda *_: None  # type: ignore[method-assign]
    Policy.search = search  # type: ignore[method-assign]


def _toss(shift: float) -> None:
    """Coins by which drafts are accepted are others than those of the other ranks, and as uniform as SGLang's."""
    from sglang.srt.speculative import eagle_utils

    draw = eagle_utils._verify_coins
    eagle_utils._verify_coins = lambda **arguments: tuple((coins + shift) % 1 for coins in draw(**arguments))


def _halves() -> None:
    """TileSpec always drafts all it can, and verifies half of it."""
    from tessera.tilespec.policy import Choice, Policy

    search = Policy.search

    def halved(self: Policy, bs: int, kv_tokens: int) -> Choice:
        choice = search(self, bs, kv_tokens)
        most = max(self.steps)
        return choice._replace(steps=most, tier=None, tokens=bs * (most + 1) // 2)

    _always(halved)


def _costs() -> None:
    """TileSpec is told that steps cost what the file TESSERA_TEST_COSTS says, a cost table as caches keep it."""
    import json
    from pathlib import Path

    from tessera.tilespec import nominal
    from tessera.tilespec.costs import CostTable

    table = CostTable.from_json(json.loads(Path(os.environ["TESSERA_TEST_COSTS"]).read_text()))
    nominal.nominal = lambda *_: table


def _unmeasured() -> None:
    """What steps cost cannot be found out."""
    from tessera.tilespec import nominal

    def failing(*_: Any) -> None:
        raise RuntimeError("out of luck")

    nominal.nominal = failing  # type: ignore[assignment]


def _one_gpu() -> None:
    """Every rank has the first GPU. NCCL takes them for ranks of several machines, or it would refuse."""
    from collections.abc import Iterator
    from contextlib import contextmanager

    from sglang.srt import utils

    @contextmanager
    def first(gpu_id: int) -> Iterator[int]:
        os.environ["NCCL_HOSTID"] = f"rank {gpu_id}"  # for the process that is started inside
        yield 0

    for module in (utils, utils.common):  # before whoever starts ranks imports it
        module.maybe_reindex_device_id = first


def _awq_in_triton() -> None:
    """SGLang's AWQ takes its Triton kernel, as where nothing can be compiled."""
    sys.modules["sglang.kernels.ops.quantization.awq_dequantize"] = None  # type: ignore[assignment]


def _unpinned() -> None:
    """Nothing is pinned: SGLang's adapters (LoRA) pin tensors without asking whether there is a GPU to copy to."""
    import torch

    def plain(make: Any) -> Any:
        def unpinned(*args: Any, **kwargs: Any) -> Any:
            return make(*args, **(kwargs | {"pin_memory": False} if "pin_memory" in kwargs else kwargs))

        return unpinned

    for name in ("tensor", "empty", "zeros", "arange"):
        setattr(torch, name, plain(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self: self  # type: ignore[method-assign, assignment, misc]


def _pad_plain_attention() -> None:
    """SGLang's CPU engine pads batches to those of other ranks; only its AMX attention says with what lengths."""

    def pad() -> None:
        from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

        for name in ("get_cpu_graph_seq_len_fill_value", "get_cuda_graph_seq_len_fill_value"):  # which 0.5.17 calls
            setattr(TorchNativeAttnBackend, name, lambda _: 1)

    _in_children(pad)


def _host_cache_on_cpu() -> None:
    """SGLang's host part of a hierarchical cache without a GPU, in servers where `tessera_patches.cpu` is not on."""

    def copy_without_gpu() -> None:
        import torch
        from sglang.srt.mem_cache import memory_pool_host
        from sglang.srt.mem_cache.pool_host import base, common, mha

        def load(host: Any, pool: Any, there: Any, here: Any, layer: int, *_: Any, **__: Any) -> None:
            pool.k_buffer[layer][here] = host.k_data_refs[layer][there]
            pool.v_buffer[layer][here] = host.v_data_refs[layer][there]

        def back_up(host: Any, pool: Any, there: Any, here: Any, *_: Any, **__: Any) -> None:
            for layer in range(host.layer_num):
                host.k_data_refs[layer][there] = pool.k_buffer[layer][here]
                host.v_data_refs[layer][there] = pool.v_buffer[layer][here]

        for module in (base, mha, memory_pool_host):  # which 0.5.17 has copies in
            module.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
        common.ALLOC_MEMORY_FUNCS["cpu"] = lambda dims, dtype, device, *_, **__: torch.empty(
            dims, dtype=dtype, device=device
        )
        mha.MHATokenToKVPoolHost.load_to_device_per_layer = load
        mha.MHATokenToKVPoolHost.backup_from_device_all_layer = back_up

    _in_children(copy_without_gpu)


def _in_children(change: Any) -> None:
    """Do something in each process of a server but the first, once its plugins are loaded."""
    import multiprocessing

    from sglang.srt.plugins.hook_registry import HookRegistry

    apply = HookRegistry.apply_hooks

    def apply_and_change() -> None:
        apply()
        if multiprocessing.parent_process() is not None:
            change()

    HookRegistry.apply_hooks = apply_and_change


_FAULTS = {
    "pad-plain-attention": _pad_plain_attention,
    "host-cache-on-cpu": _host_cache_on_cpu,
    "awq-in-triton": _awq_in_triton,
    "unpinned": _unpinned,
    "costs": _costs,
    "last-mlps": _log_last_mlps,
    "pick-as-on-gpu": _pick_as_on_gpu,
    "unmeasured": _unmeasured,
    "dice": _dice,
    "halves": _halves,
    "one-gpu": _one_gpu,
    "version": _version,
    "seam": _seam,
    "taken": _taken,
    "unreached": _unreached,
    "unclassified": _unclassified,
    "used-files": _used_files,
    "permit": _permit,
    "bug": _bug,
    "ids-again": _ids_again,
    "pooling": _pooling,
}
gc.set_threshold(50_000, 20, 100)
sys.modules["sklearn"] = None  # type: ignore[assignment]
for _name in os.environ.get("TESSERA_TEST_FAULT", "").split():
    _FAULTS[_name]()
