"""`sgl.Engine` in a process of its own: our options are keywords; answers hold lists, as SGLang's do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tessera.launching.command import environment
from tessera_testing.claims import FINGERPRINTS
from tessera_testing.reference import HuggingFace, relative_error
from tessera_testing.tiny import TINY

SCRIPT = """
import json, sys

if __name__ == "__main__":
    from sglang.srt.plugins import load_plugins
    load_plugins()  # without a GPU the kernels' library needs our stand-in for CUDA's driver
    import sglang
    engine = sglang.Engine(
        model_path=sys.argv[1],
        device="cpu",
        attention_backend="torch_native",
        dtype="float32",
        mem_fraction_static=0.9,
        max_total_tokens=8192,
        toploc_verification=True,
    )
    prompts = [[5, 6, 7, 8], [9, 10, 11]]
    sampling = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=sampling, return_hidden_states=[True, "last"])
    stream = engine.generate(input_ids=prompts[0], sampling_params=sampling, return_hidden_states=True, stream=True)
    *_, last = stream
    with open(sys.argv[2], "w") as file:
        json.dump({"prompts": prompts, "answers": answers, "streamed": last}, file)
    engine.shutdown()
"""


def test_states_are_lists(tmp_path: Path, hf: HuggingFace) -> None:
    """They are what json can write: the prompt's rows as one list, then each generated row; ``last`` is one row."""
    script, found = tmp_path / "script.py", tmp_path / "found.json"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(TINY), str(found)]
    ended = subprocess.run(command, env=environment({}), capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = json.loads(found.read_text())
    for prompt, answer in zip(told["prompts"], told["answers"], strict=True):
        answer["wanted"] = hf.states([*prompt, *answer["output_ids"][:-1]])
    every, last = told["answers"]
    for answer in (every, told["streamed"]):
        prompt_rows, *rows = answer["meta_info"]["hidden_states"]
        assert [len(prompt_rows), len(rows)] == [4, 2]
        assert relative_error([*prompt_rows, *rows], every["wanted"]) <= 1e-5
        assert answer["meta_info"][FINGERPRINTS]
    assert relative_error(last["meta_info"]["hidden_states"], last["wanted"][-1]) <= 1e-5
