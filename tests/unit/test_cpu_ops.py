"""The CPU stand-ins for operators of ``sgl_kernel``, called as SGLang calls them, against plain loops."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import tessera_kernels.driver
from tessera_kernels import cpu
from tessera_kernels.cpu import driver, gated_attention, ops

ops.register()
sgl_kernel = torch.ops.sgl_kernel


@pytest.fixture(params=range(8))
def rng(request: pytest.FixtureRequest) -> torch.Generator:
    """A seeded generator; every test that takes it runs once for each seed."""
    return torch.Generator().manual_seed(request.param)


def randint(rng: torch.Generator, low: int, high: int, *size: int) -> torch.Tensor:
    """Return int64 values from ``low`` to ``high``, both included."""
    return torch.randint(low, high + 1, size, generator=rng)


def random_ranges(rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a table and, for some of its rows, in any order, a range of columns; one range is empty."""
    table = randint(rng, 0, 10_000, 12, 40).int()
    rows = torch.randperm(12, generator=rng)[:7]
    start = randint(rng, 0, 20, 7)
    lengths = randint(rng, 0, 20, 7)
    lengths[2] = 0
    return table, rows, start, start + lengths


class TestRegistration:
    """What ``register`` and ``enable`` do around the operators."""

    def test_operators_that_exist_are_left_alone(self) -> None:
        """A compiled operator wins."""
        again = ops.register.__wrapped__()  # a second definition of one would raise
        assert not again._op_defs

    def test_calls_are_observed(self) -> None:
        """With the operator's function."""
        observed: list[object] = []
        ops.on_call(observed.append)
        sgl_kernel.fused_sigmoid_mul_cpu(torch.ones(2, 4), torch.zeros(2, 4))
        ops.on_call(id)
        assert observed == [gated_attention.fused_sigmoid_mul_cpu]

    def test_enable_says_what_to_do_if_sgl_kernel_does_not_load(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The import error is the cause, not the message."""
        monkeypatch.setattr(tessera_kernels.driver, "is_present", lambda: False)
        monkeypatch.setattr(driver, "install", lambda: None)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setitem(sys.modules, "sgl_kernel", None)
        with mock.patch.dict(os.environ), pytest.raises(RuntimeError, match="reinstall sglang-kernel"):
            cpu.enable()

    def test_enable_sets_only_what_the_user_did_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A variable that is set already keeps its value."""
        monkeypatch.setattr(tessera_kernels.driver, "is_present", lambda: False)
        monkeypatch.setattr(driver, "install", lambda: None)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setitem(sys.modules, "sgl_kernel", SimpleNamespace())
        with mock.patch.dict(os.environ, {"TORCHDYNAMO_DISABLE": "0"}):
            os.environ.pop("SGLANG_USE_CPU_ENGINE", None)
            assert cpu.enable() is True
            assert os.environ["SGLANG_USE_CPU_ENGINE"] == "1"
            assert os.environ["TORCHDYNAMO_DISABLE"] == "0"

    def test_the_device_is_the_cpu_where_nobody_names_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever this torch says without a driver; named devices stay theirs."""
        monkeypatch.setattr(torch, "get_device_module", lambda device=None: getattr(torch, device or "cuda"))
        cpu._prefer_cpu()
        assert torch.get_device_module() is torch.cpu
        assert torch.get_device_module("cuda") is torch.cuda

    def test_enable_changes_nothing_with_a_torch_without_cuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Then sgl_kernel is not the CUDA wheel either."""
        monkeypatch.setattr(tessera_kernels.driver, "is_present", lambda: False)
        monkeypatch.setattr(torch.version, "cuda", None)
        with mock.patch.dict(os.environ):
            before = dict(os.environ)
            assert cpu.enable() is False
            assert os.environ == before


class TestCacheSlots:
    """KV-cache slots and the request-to-token table."""

    @pytest.mark.parametrize("index", [torch.int32, torch.int64])
    def test_copy_all_layer_kv_cache(self, rng: torch.Generator, index: torch.dtype) -> None:
        """Slots are copied in buffers of different widths; sources that are targets too are read first."""
        buffers = [
            torch.randn(30, 2, 8, generator=rng),
            torch.randn(30, 3, generator=rng).bfloat16(),
            torch.randn(64, 5, generator=rng)[:30],
        ]
        expected = [buffer.clone() for buffer in buffers]
        targets = torch.randperm(30, generator=rng)[:11]
        sources = randint(rng, 0, 29, 11)
        sources[:3] = targets[4:7]  # read what is also written
        for buffer, new in zip(buffers, expected, strict=True):
            for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
                new[target] = buffer[source].clone()
        pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
        strides = torch.tensor([buffer[0].numel() * buffer.element_size() for buffer in buffers])
        sgl_kernel.copy_all_layer_kv_cache_cpu(pointers, strides, targets.to(index), sources.to(index))
        assert all(torch.equal(buffer, new) for buffer, new in zip(buffers, expected, strict=True))

    def test_copy_of_nothing_touches_no_memory(self) -> None:
        """SGLang calls it so once at start; the address here is null."""
        none = torch.empty(0, dtype=torch.int64)
        sgl_kernel.copy_all_layer_kv_cache_cpu(torch.zeros(1, dtype=torch.uint64), torch.tensor([8]), none, none)

    def test_assign_req_to_token_pool(self, rng: torch.Generator) -> None:
        """Every other cell of the table keeps its value."""
        table, rows, start, end = random_ranges(rng)
        slots = randint(rng, 10_001, 20_000, int((end - start).sum()) + 3)
        expected, taken = table.clone(), iter(slots.tolist())
        for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
            for column in range(first, last):
                expected[row, column] = next(taken)
        sgl_kernel.assign_req_to_token_pool_cpu(rows, table, start, end, slots, 40)
        assert torch.equal(table, expected)

    def test_assign_extend_cache_locs(self, rng: torch.Generator) -> None:
        """The rest of the output keeps its value."""
        table, rows, start, end = random_ranges(rng)
        ranges = zip(rows.tolist(), start.tolist(), end.tolist(), strict=True)
        wanted = [int(table[row, column]) for row, first, last in ranges for column in range(first, last)]
        out = torch.full((len(wanted) + 4,), -7)
        sgl_kernel.assign_extend_cache_locs_cpu(rows, table, start, end, out, 40)
        assert out.tolist() == wanted + [-7] * 4

    def test_assign_draft_cache_locs_contiguous(self, rng: torch.Generator) -> None:
        """A fixed number of cells behind each sequence."""
        table, rows, start, _ = random_ranges(rng)
        topk, steps = 3, 5
        out = torch.full((7 * topk * steps,), -7)
        sgl_kernel.assign_draft_cache_locs_contiguous_cpu(rows, table, start, out, 40, topk, steps)
        pairs = zip(rows.tolist(), start.tolist(), strict=True)
        assert out.tolist() == [int(table[row, first + i]) for row, first in pairs for i in range(topk * steps)]


class TestAcceptance:
    """Tokens and KV slots of accepted nodes."""

    def test_fill_bonus_tokens(self, rng: torch.Generator) -> None:
        """The tokens may be flat or in rows."""
        tokens, lengths = randint(rng, 0, 99, 6, 4).int(), randint(rng, 1, 4, 6).int()
        for accepted in (tokens, tokens.flatten()):
            bonus = torch.full((6,), -7, dtype=torch.int32)
            sgl_kernel.fill_bonus_tokens_cpu(accepted, lengths, bonus, 4)
            assert bonus.tolist() == [int(tokens[b, lengths[b] - 1]) for b in range(6)]

    def test_fill_accept_out_cache_loc(self, rng: torch.Generator) -> None:
        """Slots of accepted nodes without gaps; the rest keeps its value."""
        slots = randint(rng, 0, 999, 24)
        index = randint(rng, -1, 23, 4, 5).int()
        index[1] = -1
        wanted = [int(slots[i]) for i in index.flatten().tolist() if i != -1]
        out = torch.full((20,), -7)
        sgl_kernel.fill_accept_out_cache_loc_cpu(index, slots, out)
        assert out.tolist() == wanted + [-7] * (20 - len(wanted))
