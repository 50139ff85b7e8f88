"""The project's first use, word for word but for the options of a CPU, of hidden states, and log-probabilities."""

import sys

if __name__ == "__main__":
    from sglang.srt.plugins import load_plugins

    load_plugins()  # without a GPU the kernels' library needs our stand-in for CUDA's driver
    import numpy as np
    import sglang as sgl

    engine = sgl.Engine(
        model_path=sys.argv[1],
        enable_return_hidden_states=True,
        device="cpu",
        attention_backend="torch_native",
        dtype="float32",
        mem_fraction_static=0.9,
        max_total_tokens=8192,
    )
    proof_state = "n : Nat\n⊢ n + 0 = n"
    prompt = f"Complete the following Lean 4 code:\n\n```lean4\n/- tactic state:\n{proof_state}\n-/\n```"
    out = engine.generate([prompt], sampling_params={"max_new_tokens": 1}, return_hidden_states=True)
    states = out[0]["meta_info"]["hidden_states"]
    array = np.array(states[0], dtype=np.float32)
    np.savez(sys.argv[2], array=array, embedding=array.mean(axis=0))
    candidates = engine.generate(
        [prompt],
        sampling_params={"max_new_tokens": 64, "temperature": 0.6, "top_p": 0.95, "n": 4},
        return_logprob=True,
        logprob_start_len=-1,
    )
    for candidate in candidates:
        logprobs = candidate["meta_info"]["output_token_logprobs"]
        print(  # noqa: T201 - as its author wrote it
            repr(candidate["text"][:80]), type(states).__name__, len(logprobs), sum(lp[0] for lp in logprobs)
        )
    engine.shutdown()
