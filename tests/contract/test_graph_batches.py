"""What hooks read of a batch is there in the copies that SGLang makes of it."""

from __future__ import annotations

import ast
import inspect

from sglang.srt.model_executor.runner import prefill_cuda_graph_runner

from tessera_testing.marks import needs


@needs("dp_attention")
def test_a_prefill_graph_knows_that_its_batch_is_padded() -> None:
    """`tessera_patches.engine.batches.is_padded`: without logits of a padded batch, SGLang's scheduler ends."""
    tree = ast.parse(inspect.getsource(prefill_cuda_graph_runner))
    copied = [
        {keyword.arg for keyword in call.keywords}
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "ForwardBatch"
    ]
    replayed = [fields for fields in copied if "is_prefill_only" in fields]
    assert replayed
    assert all("global_num_tokens_for_logprob_cpu" in fields for fields in replayed)
