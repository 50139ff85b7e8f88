"""A user's program: every way of calling an engine without a tokenizer, written as JSON. Its tests look at it."""

import asyncio
import json
import sys
from typing import Any

if __name__ == "__main__":
    from sglang.srt.plugins import load_plugins

    load_plugins()  # without a GPU the kernels' library needs our stand-in for CUDA's driver
    import sglang
    import torch

    engine = sglang.Engine(
        model_path=sys.argv[1],
        device="cpu",
        attention_backend="torch_native",
        dtype="float32",
        mem_fraction_static=0.9,
        max_total_tokens=8192,
        skip_tokenizer_init=True,
        toploc_verification=True,
        answer_max_megabytes=1,
        enable_injection=True,
    )
    prompts = [[5, 6, 7, 8], [9, 10, 11]]
    sampling = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    vectors = json.loads(sys.argv[3])
    found: dict[str, Any] = {"prompts": prompts}

    def generate(input_ids: Any, **fields: Any) -> Any:
        """The whole answer, or the message of the error."""
        try:
            return engine.generate(input_ids=input_ids, **{"sampling_params": sampling, **fields})
        except (TypeError, ValueError) as error:
            return str(error)

    found["states"] = generate(prompts, return_hidden_states=[True, "last"])
    *_, found["stream"] = generate(prompts[0], return_hidden_states=True, return_embedding=True, stream=True)
    found["base64"] = generate(prompts[0], return_hidden_states=True, hidden_states_format="base64")
    found["embeddings"] = generate(prompts, return_embedding={"pooling": "last"})
    found["samples"] = generate(prompts[0], sampling_params={**sampling, "n": 2}, return_embedding=True)
    found["injected"] = generate(
        prompts[0], return_hidden_states=True, input_embed_overrides=[{"positions": [1, 2], "embeds": vectors}]
    )
    found["errors"] = [
        generate([5, 6, 1 << 20]),
        generate(prompts[0], return_embedding={"pooling": "median"}),
        generate(prompts, return_hidden_states=[True]),
        generate(prompts[0], return_embeddings=True),
        generate(prompts[0], return_hidden_states=True, sampling_params={**sampling, "max_new_tokens": 8000}),
    ]
    found["without"] = generate(prompts[0], return_toploc_fingerprints=False)

    async def several() -> Any:
        """Two at once, and a stream: each gets what it asked for."""
        one, other = await asyncio.gather(
            engine.async_generate(input_ids=prompts[0], sampling_params=sampling, return_embedding=True),
            engine.async_generate(input_ids=prompts[1], sampling_params=sampling),
        )
        stream = await engine.async_generate(
            input_ids=prompts[1], sampling_params=sampling, return_embedding=True, stream=True
        )
        return [one, other, [chunk async for chunk in stream][-1]]

    found["async"] = engine.loop.run_until_complete(several())
    announces = hasattr(engine, "begin_weight_update")  # then updates are taken between its calls alone
    if announces:
        engine.begin_weight_update()
    engine.update_weights_from_tensor([("model.norm.weight", 2 * torch.load(sys.argv[4]))])
    if announces:
        engine.end_weight_update()
    found["updated"] = generate(prompts[0], return_hidden_states=True)
    with open(sys.argv[2], "w") as file:  # noqa: PTH123 - as users write it
        json.dump(found, file)
    engine.shutdown()
