"""SGLang no longer comes to a seam: our change is made to nothing, and the server does not serve without it.

Each seam alone: `benchmarks/unreached_seams.py`.
"""

from __future__ import annotations

import pytest

from tessera.launching.server import Server
from tessera_patches import inventory
from tessera_patches.core.seam import Phase, Runs
from tessera_testing.drafts import TREE, chain, drafting
from tessera_testing.marks import absent, only_in_full
from tessera_testing.pool import MakeServer
from tessera_testing.refusal import Refusal, expect_refusal
from tessera_testing.tiny import TINY

HIDDEN, INJECTION = "--enable-return-hidden-states", "--enable-injection"
DRAFTS = drafting("STANDALONE", chain(3))
SIZED = () if absent("tilespec") else ("--tile-spec",)
FEATURES = ["rows", "inject", "speculative_stops", *(["tilespec"] if SIZED else [])]
CHAINS = {"standalone_chains", "cpu_chains"}
ARGS, HTTP = "sglang.srt.server_args.ServerArgs", "sglang.srt.entrypoints.http_server"
STARTED = f"{ARGS}.check_server_args"
(RESOLVED,) = (seam.target for seam in inventory.SEAMS if seam.handler == "tessera_patches.launch.flags:resolve")
LOST = "hook on ServerArgs.__post_init__" if RESOLVED.endswith("__post_init__") else f"hooks on {RESOLVED}"
CONFIGURED = "sglang.srt.managers.scheduler.configure_scheduler_process"
READY = "sglang.srt.entrypoints.engine.Engine._set_startup_time"
ANSWERED = "sglang.srt.managers.tokenizer_manager.TokenizerManager._handle_batch_output"


def reached(*stages: Runs) -> list[str]:
    """Targets of the hooks that must have been called by one of these stages."""
    found = [seam for phase in (Phase.MAIN, Phase.SCHEDULER) for seam in inventory.hooks(phase, FEATURES)]
    return [seam.target for seam in found if seam.runs in stages and seam.must_run({*FEATURES, *CHAINS})]


def env(*targets: str) -> dict[str, str]:
    """Environment of a server in which SGLang does not call these."""
    return {"TESSERA_TEST_FAULT": "unreached", "TESSERA_TEST_UNREACHED": " ".join(targets)}


def not_called(targets: list[str]) -> str:
    """The line with which such a server ends, in which all of them are named."""
    hint = "; code that starts schedulers itself must call load_plugins() in them" if CONFIGURED in targets else ""
    return f"tessera: refusing to start: SGLang did not call our hooks on {', '.join(targets)}{hint}"


def named(log: str) -> set[str]:
    """What such a line names."""
    (line,) = (line for line in log.splitlines() if line.startswith("tessera: refusing to start: SGLang did not"))
    return {*line.partition(" hooks on ")[2].split(", ")}


def test_seams_of_the_start(refusal: Refusal) -> None:
    """All of them, each by name, before the first request."""
    targets = [target for target in reached(Runs.START) if target != READY]
    found = named(refusal(TINY, HIDDEN, INJECTION, *DRAFTS, *SIZED, env=env(*targets)))
    assert {*targets} <= found
    assert all("(" in name for name in found - {*targets})  # what these hooks make


def test_seams_of_a_request(refusal: Refusal) -> None:
    """All but the one that looks at answers; the first request, a health check, shows it."""
    targets = [target for target in reached(Runs.REQUEST) if target != ANSWERED]
    found = named(refusal(TINY, HIDDEN, INJECTION, *DRAFTS, *SIZED, env=env(*targets)))
    assert {*targets} <= found
    assert all("(" in name for name in found - {*targets})  # what these hooks make


@pytest.mark.parametrize("target", [READY, *only_in_full(f"{HTTP}.set_global_state")])
def test_seams_of_the_main_process(refusal: Refusal, target: str) -> None:
    """Those from which others are judged, one by one."""
    found = named(refusal(TINY, HIDDEN, env=env(target)))
    assert target in found
    assert all("(" in name for name in found - {target})  # what this hook makes


class WarmedUp:
    """Makes servers to which SGLang sends its own first request."""

    def __init__(self, make: MakeServer) -> None:
        self._make = make

    def __call__(self, *args: object, **kwargs: object) -> Server:
        """A server that is not told to skip it."""
        server = self._make(*args, **kwargs)
        server._command.remove("--skip-server-warmup")
        return server


def test_the_one_that_looks_at_answers(make_server: MakeServer) -> None:
    """SGLang's warm-up was answered, and it was not called."""
    log = expect_refusal(TINY, HIDDEN, env=env(ANSWERED), make=WarmedUp(make_server))
    assert not_called([ANSWERED]) in log.splitlines()


def test_seams_of_the_first_request(make_server: MakeServer) -> None:
    """SGLang's own one has its answer, and it was not reached."""
    name = "sglang.srt.utils.request_logger.RequestLogger.log_finished_request"
    log = expect_refusal(TINY, HIDDEN, env=env(name), make=WarmedUp(make_server))
    assert not_called([name]) in log.splitlines()


CHANGED = [
    f"{HTTP}.app(http.info:add_route)",
    "sglang.srt.layers.logits_processor.LogitsProcessor.forward(tessera.rows.forward_notes:ForwardNotes)",
]
SIZED_ALONE = [
    "sglang.srt.speculative.eagle_worker_v2.logger(tilespec.worker:AdaptiveWorker)",
    "sglang.srt.model_executor.model_runner.ModelRunner.forward(tilespec.draft.drafts:ChainDraftWorker)",
    "sglang.srt.speculative.spec_utils.select_top_k_tokens",
]
FOUND = "sglang.srt.models.llama.LlamaMLP.forward(tilespec.extend.last_rows:compute_last_rows_only)"


@pytest.mark.parametrize("name", [CHANGED[0], *only_in_full(*CHANGED[1:])])
def test_changes_that_no_registry_makes(refusal: Refusal, name: str) -> None:
    """A route and torch's hooks, alone."""
    assert not_called([name]) in refusal(TINY, HIDDEN, env=env(name)).splitlines()


@pytest.mark.skipif(not SIZED, reason="they are TileSpec's")
@pytest.mark.parametrize("name", [FOUND, SIZED_ALONE[-1], *only_in_full(*SIZED_ALONE[:-1])])
def test_what_chains_need(refusal: Refusal, name: str) -> None:
    """Servers with trees do without the last two. That the draft model has such a layer, the scheduler finds out."""
    assert not_called([name]) in refusal(TINY, *DRAFTS, *SIZED, env=env(name)).splitlines()


@pytest.mark.full
def test_trees_need_their_rows_moved(make_server: MakeServer) -> None:
    """By the second token."""
    moved = "sglang.srt.speculative.spec_utils.move_accept_tokens_to_target_kvcache"
    log = expect_refusal(TINY, HIDDEN, *drafting("EAGLE", TREE), env=env(moved), make=WarmedUp(make_server))
    assert not_called([moved]) in log.splitlines()


@pytest.mark.full
@pytest.mark.skipif(not SIZED, reason="only TileSpec's are called by the second token")
def test_seams_of_the_second_token(make_server: MakeServer) -> None:
    """SGLang's warm-up has eight."""
    targets = reached(Runs.DECODE)
    assert len(targets) >= 2
    log = expect_refusal(TINY, *DRAFTS, *SIZED, env=env(*targets), make=WarmedUp(make_server))
    assert not_called(targets) in log.splitlines()


def test_a_command_line_that_nobody_read(refusal: Refusal) -> None:
    """Our options are on it, and SGLang makes its arguments by another function: it would serve without them."""
    log = refusal(TINY, "--toploc-verification", env=env(f"{ARGS}.from_cli_args"))
    assert "--toploc-verification: SGLang did not call our hook on ServerArgs.from_cli_args" in log


@pytest.mark.parametrize(
    ("targets", "why"),
    [
        ((RESOLVED,), f"SGLang did not call our {LOST}"),
        pytest.param(
            (STARTED,),
            "rows: SGLang started this process without ServerArgs.check_server_args",
            marks=pytest.mark.full,
        ),
        ((STARTED, CONFIGURED), "rows: SGLang started this process without ServerArgs.check_server_args"),
        ((CONFIGURED,), f"SGLang did not call our hooks on {CONFIGURED}"),
    ],
    ids=["resolution", "main", "main and scheduler", "scheduler"],
)
def test_options_that_do_not_arrive(refusal: Refusal, targets: tuple[str, ...], why: str) -> None:
    """Read, and lost on the way: where they are made or resolved, before processes are started, or in a scheduler."""
    assert f"tessera: refusing to start: {why}" in refusal(TINY, HIDDEN, env=env(*targets))
