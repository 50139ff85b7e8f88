"""``tessera toploc calibrate``: thresholds for one model, from honest responses and from known cheats."""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tessera.fingerprint import calibration, cheats
from tessera.fingerprint.calibration import Measured
from tessera.testing.prover import Response, ask, check, tampered
from tessera.testing.server import Server

DEFAULT_CHEATS = (*cheats.PRECISIONS, "skipped layer", "changed prompt", "changed early token")

_EPILOG = """\
Servers are started one after the other: one for each --honest and each cheat with other weights, which make responses,
and one that verifies all of them. A cheat's weights are a rounded copy in a temporary folder (TMPDIR).

example, one H200:
  tessera toploc calibrate --model-path Llama-3.1-8B-Instruct --output thresholds.json \\
    --honest '' --honest '--attention-backend triton' --honest '--disable-cuda-graph' --responses 200
then:
  python -m sglang.launch_server --model-path … --toploc-verification --toploc-thresholds thresholds.json
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser("toploc", help="thresholds of fingerprints")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    calibrate = actions.add_parser(
        "calibrate",
        help="measure honest noise and known cheats, and write thresholds",
        description="Measure how far honest responses and those of known cheats lie from a verifier's own prefill, and "
        "write thresholds with the shares of both that pass.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    calibrate.add_argument("--model-path", type=Path, required=True, metavar="FOLDER", help="the model, safetensors")
    calibrate.add_argument("--output", type=Path, required=True, metavar="FILE", help="thresholds are written here")
    calibrate.add_argument("--plot", type=Path, metavar="FILE", help="histograms are drawn here (needs matplotlib)")
    calibrate.add_argument("--responses", type=int, default=60, metavar="N", help="for each kind (default: 60)")
    calibrate.add_argument("--tokens", type=int, default=128, metavar="N", help="generated for each (default: 128)")
    calibrate.add_argument(
        "--server-args", type=shlex.split, default=[], metavar="ARGS", help="options of every server, in one string"
    )
    calibrate.add_argument(
        "--honest",
        action="append",
        metavar="ARGS",
        help="further options of an honest prover; may be repeated (default: one prover with none)",
    )
    calibrate.add_argument(
        "--cheats",
        type=lambda text: [name.strip() for name in text.split(",") if name.strip()],
        default=list(DEFAULT_CHEATS),
        metavar="NAMES",
        help=f"comma-separated (default: {','.join(DEFAULT_CHEATS)})",
    )
    calibrate.add_argument(
        "--other-model", type=Path, metavar="FOLDER", help="one more cheat: another model's responses"
    )
    calibrate.add_argument(
        "--margin",
        type=float,
        default=calibration.MARGIN,
        help=f"thresholds are the largest honest distances times this (default: {calibration.MARGIN})",
    )
    calibrate.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start servers, measure, write."""
    unknown = set(options.cheats) - set(DEFAULT_CHEATS)
    if unknown:
        print(f"tessera toploc calibrate: no cheat {', '.join(sorted(unknown))}; there are {', '.join(DEFAULT_CHEATS)}")
        return 2
    honest = {args or "as the verifier": _prove(options, options.model_path, args) for args in options.honest or [""]}
    dishonest = _cheat(options, next(iter(honest.values())))
    print("verifying all of them …", flush=True)
    with _server(options, options.model_path, "") as server:
        show = _bar("verified", sum(map(len, [*honest.values(), *dishonest.values()])))
        good = {name: check(server.url, responses, show) for name, responses in honest.items()}
        bad = {name: check(server.url, responses, show) for name, responses in dishonest.items()}
    report = calibration.report(good, bad, topk=_topk(good), margin=options.margin)
    about = {
        "model": str(options.model_path),
        "sglang": version("sglang"),
        "date": datetime.now(UTC).date().isoformat(),
        "server_args": options.server_args,
        "tokens": options.tokens,
    }
    options.output.write_text(json.dumps({**about, **report}, indent=1) + "\n")
    print(table(report))
    print(f"written: {options.output}")
    if options.plot is not None:
        from tessera.fingerprint.histograms import draw

        draw(good, bad, report["thresholds"], options.plot)
        print(f"drawn: {options.plot}")
    return 0


def _prove(options: argparse.Namespace, model: Path, args: str) -> list[Response]:
    print(f"prover: {model.name} {args}".rstrip(), flush=True)
    with _server(options, model, args) as server:
        return ask(server.url, options.responses, options.tokens, _bar("responses", options.responses))


def _cheat(options: argparse.Namespace, honest: list[Response]) -> dict[str, list[Response]]:
    found: dict[str, list[Response]] = {}
    for name in options.cheats:
        if name in ("changed prompt", "changed early token"):
            found[name] = [tampered(one, name) for one in honest]
            continue
        with tempfile.TemporaryDirectory(prefix="tessera-cheat-") as folder:
            copy = Path(folder)
            if name in cheats.PRECISIONS:
                cheats.requantized(options.model_path, copy, name)
            else:
                cheats.without_last_layer(options.model_path, copy)
            print(f"cheat: {name}", flush=True)
            found[name] = _prove(options, copy, "")
    if options.other_model is not None:
        found["another model"] = _prove(options, options.other_model, "")
    return found


def _server(options: argparse.Namespace, model: Path, args: str) -> Server:
    return Server(model, "--toploc-verification", *options.server_args, *shlex.split(args), progress=_say)


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _bar(what: str, total: int) -> Callable[[int], None]:
    from tqdm import tqdm

    bar = tqdm(total=total, desc=f"  {what}", leave=False)

    def show(done: int) -> None:
        bar.update(done)

    return show


def _topk(good: dict[str, list[Measured]]) -> int:
    return max(values for responses in good.values() for one in responses for values in one.values)


def table(report: dict[str, object]) -> str:
    """What passes, for the terminal."""
    limits = report["thresholds"]
    lines = [
        f"thresholds: {limits}",
        "",
        f"{'':24s} {'responses':>9s} {'pass':>6s} {'pass by default thresholds':>27s}",
    ]
    for kind in ("honest", "cheats"):
        rows: dict[str, dict[str, int]] = report[kind]  # type: ignore[assignment]
        lines += [
            f"{name:24s} {row['responses']:9d} {row['passed']:6d} {row['passed_by_default']:27d}"
            for name, row in rows.items()
        ]
    return "\n".join(lines)
