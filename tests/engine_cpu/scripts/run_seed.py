"""Runs seed.py, which is as its author wrote it, with the engine's options of a CPU, a tiny model, and another port.

seed.py has but two changes: the option that enables hidden states, and log-probabilities beside sampling_params.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from sglang.srt.plugins import load_plugins

    load_plugins()  # without a GPU the kernels' library needs our stand-in for CUDA's driver
    import numpy as np
    import requests
    import sglang

    model, server, out = sys.argv[1:]
    engine, post = sglang.Engine, requests.post

    def engine_here(**options: Any) -> Any:
        """The stock engine, on this machine."""
        options |= {"model_path": model, "device": "cpu", "attention_backend": "torch_native", "dtype": "float32"}
        return engine(**options, mem_fraction_static=0.9, max_total_tokens=8192)

    def post_here(url: str, **request: Any) -> requests.Response:
        """To the server that runs."""
        return post(url.replace("http://localhost:30000", server), **request)

    sglang.Engine = engine_here
    requests.post = post_here  # type: ignore[assignment]
    found = runpy.run_path(str(Path(__file__).with_name("seed.py")))
    np.savez(out, states=found["arr2"], embedding=found["emb2"], over_http=found["arr_http"])
