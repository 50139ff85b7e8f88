"""Why options are refused that no answer shows to be wrong: what SGLang's own code does with them."""

from __future__ import annotations

import ast
import asyncio
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import sglang
import torch
import zstandard

from tessera.http.asgi import Message
from tessera.http.body_limit import BodyLimit
from tessera.versions import installed, within
from tessera_patches.core import source
from tessera_patches.core.places import SPECULATIVE, TARGET_GRAPHS
from tessera_testing.marks import is_installed, needs

_ROOT = Path(sglang.__path__[0]) / "srt"


def readers(name: str) -> set[str]:
    """The files of SGLang's scheduler that read a field, by their paths under ``srt``, without those of options."""
    files = (path for path in _ROOT.rglob("*.py") if "arg_groups" not in path.parts)
    return {str(path.relative_to(_ROOT)) for path in files if f".{name}" in path.read_text()}


class Range(NamedTuple):
    """What 0.5.17 has of a request's tokens in a forward."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """How many they are."""
        return self.end - self.start


def test_slots_of_an_encoder_have_no_tokens() -> None:
    """An encoder's input has the first slots of a request, which no forward of the decoder writes rows to."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    picture, prompt = 4, 6
    request = SimpleNamespace(
        multimodal_inputs=SimpleNamespace(num_image_tokens=picture),
        prefix_len=0,
        prefix_indices=[],
        logprob_start_len=0,
        extend_len=picture + prompt,
        extend_range=Range(0, picture + prompt),
    )
    batch: Any = object.__new__(ScheduleBatch)
    batch.device, batch.reqs, batch.forward_mode = "cpu", [request], ForwardMode.EXTEND
    batch.extend_lens, batch.prefix_lens, batch.extend_num_tokens = [picture + prompt], [0], picture + prompt
    batch.extend_input_logprob_token_ids = None
    batch.out_cache_loc = slots = torch.arange(1, 1 + picture + prompt)
    batch.prepare_encoder_info_extend([array("q", range(picture + prompt))], [picture + prompt])
    assert batch.seq_lens.tolist() == [prompt]
    assert batch.encoder_out_cache_loc.tolist() == slots[:picture].tolist()
    assert batch.out_cache_loc.tolist() == slots[picture:].tolist()


@pytest.mark.skipif(is_installed("<0.5.18"), reason="it has no such option")
def test_states_of_other_layers_take_the_place_of_the_last_ones() -> None:
    """What an option captures of inner layers is what SGLang returns as hidden states, and it is as wide as all."""
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

    last, inner = torch.full((5, 4), 9.0), [torch.full((5, 4), float(layer)) for layer in range(3)]
    full = SimpleNamespace(capture_hidden_mode=CaptureHiddenMode.FULL)
    nothing: Any = SimpleNamespace()
    found = LogitsProcessor._get_hidden_states_to_store(nothing, last, None, inner, last, None, None, None, full)
    assert torch.equal(found, torch.cat(inner, dim=-1))


def test_a_grpc_server_has_none_of_the_apps_middleware() -> None:
    """Our limits of bodies are the app's; SGLang's native gRPC server is another one, in the same process."""
    start = ast.unparse(source.find("sglang.srt.entrypoints.http_server._start_native_grpc_server_for_runtime"))
    assert "start_server(" in start
    assert "app" not in {node.id for node in ast.walk(ast.parse(start)) if isinstance(node, ast.Name)}


def test_states_are_rounded_by_chance() -> None:
    """Each update of a state has a seed of its own: the same request has other rows each time."""
    from sglang.kernels.ops.mamba.triton_ops.ssu_dispatch import FlashInferSSUBackend

    seeds = list[int]()
    backend: Any = object.__new__(FlashInferSSUBackend)  # its kernel is for GPUs
    backend._enable_stochastic_rounding, backend._cache_philox_rounds = True, 0
    backend._kernel = lambda *_, rand_seed, **__: seeds.append(int(rand_seed))
    for _ in range(3):
        backend(*[torch.zeros(1)] * 6)
    assert len(set(seeds)) == 3


def test_a_compressed_body_grows_without_a_limit() -> None:
    """Our limit is of what comes in: SGLang's decompression, behind it, makes ten thousand times as much of it."""
    from sglang.srt.entrypoints.http_request_decompression import RequestDecompressionMiddleware

    seen = list[int]()

    async def app(_: Any, receive: Any, send: Any) -> None:
        seen.append(len((await receive())["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    size, most = 50_000_000, 10_000
    body = zstandard.compress(bytes(size))
    assert len(body) < most
    sent = list[Message]()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/generate", "headers": [(b"x-body-compressed", b"zstd")]}
    limited = BodyLimit(RequestDecompressionMiddleware(app), {"/generate": (most, "--option")}, 60.0)
    asyncio.run(limited(scope, receive, send))
    assert sent[0]["status"] == 200
    assert seen == [size]


@needs("tilespec")
def test_sglangs_own_sizing_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --speculative-adaptive SGLang's worker makes a controller. Ours drops it: TileSpec alone sizes steps."""
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    from tessera_patches.tilespec.workers import EagleChainWorker

    asked = list[str]()

    class Controller:
        """In the place of SGLang's, which needs a model."""

        def activate_step_by_batch(self, _: int) -> None:
            asked.append("SGLang")

    def make(worker: Any) -> None:
        worker.adaptive_controller = Controller()
        worker.speculative_num_steps, worker.topk, worker.speculative_num_draft_tokens = 3, 1, 4

    def choose(*_: Any) -> SimpleNamespace:
        asked.append("TileSpec")
        return SimpleNamespace(steps=3)

    monkeypatch.setattr(EAGLEWorkerV2, "__init__", make)
    stock: Any = EAGLEWorkerV2()
    stock.activate_step_by_batch(8)
    ours: Any = EagleChainWorker()
    ours.decide_by(SimpleNamespace(choose=choose))
    ours.activate_step_by_batch(8)
    ours.on_verify_complete_cpu([1] * 8)
    assert asked == ["SGLang", "TileSpec"]


@pytest.mark.skipif(is_installed("<0.5.18"), reason="it has no such option")
def test_block_verification_is_read_where_tilespec_does_not_come() -> None:
    """By SGLang's acceptance of EAGLE's drafts; the other readers are of algorithms that TileSpec does not size.

    That ours does not call it for chains: ``test_acceptance.py``.
    """
    name = "speculative_use_block_verification"
    others = {file for file in readers(name) if "dflash" not in file and "dspark" not in file}
    assert others == {"speculative/eagle_utils.py"}
    assert name in ast.unparse(source.find(f"{SPECULATIVE}.eagle_utils.eagle_sample"))


@pytest.mark.skipif(is_installed("<0.5.18"), reason="it has no such switch")
def test_offsets_of_a_verification_are_its_own() -> None:
    """SGLang's graph of a verification's offsets is kept by the number of requests, and reads them where they lay.

    Another verification of as many requests has others, elsewhere.
    """
    from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

    runner = SimpleNamespace(capture_forward_mode="TARGET_VERIFY", _early_verify_metadata=None)
    keys, offsets = set(), []
    for lens in ([1, 3], [2, 2]):
        layout = RaggedVerifyLayout.from_verify_lens(verify_lens_cpu=lens, device="cpu", grid=[4])
        keys.add(DecodeCudaGraphRunner._glue_key(runner, len(lens), "TARGET_VERIFY", None))
        offsets.append(layout.padded_to_bucket(padded_bs=2).qo_indptr_device)
    first, second = offsets
    assert len(keys) == 1
    assert first.tolist() != second.tolist()
    assert first.data_ptr() != second.data_ptr()
    assert "glue_key = self._glue_key(bs, " in ast.unparse(source.find(f"{TARGET_GRAPHS}.load_batch"))


def test_a_verification_is_prepared_after_its_draft() -> None:
    """On a stream of its own (SGLANG_ENABLE_OVERLAP_PLAN_STREAM), which waits for the draft since 0.5.23 alone."""
    verify = ast.unparse(source.find(f"{SPECULATIVE}.eagle_worker_common.run_eagle_verify"))
    before, _, _ = verify.partition("eagle_prepare_for_verify(")
    assert ("plan_stream.wait_stream(fwd_stream)" in before) is within(str(installed()), ">=0.5.23")


@pytest.mark.skipif(is_installed("<0.5.18"), reason="it has no such option")
def test_late_layers_skip_rows_of_one_model_alone() -> None:
    """--enable-decoder-swa-bounded-replay is allowed: others than DeepSeek-V4 match shorter prefixes with it."""
    name = "enable_decoder_swa_bounded_replay"
    assert {file for file in readers(name) if "deepseek_v4" not in file} == {"mem_cache/kv_cache_builder.py"}
