"""``tessera doctor``: would a server start here, and with what? With ``--url``: how is a running one?"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version

from tessera import __version__, config, cpu
from tessera.cli import doctor_server
from tessera.cli.connection import add_api_key
from tessera.cli.doctor_server import FEATURES, Check, package
from tessera.installing import install
from tessera_kernels import driver

PACKAGES = ("sglang", "torch", "triton", "sglang-kernel", "transformers", "starlette")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check versions, seams and switches; exit 1 where a start would fail",
        description="Check versions, seams and switches of this environment, without a server and without a GPU. "
        "With --url, ask a running server: versions, options, seams that were called, memory of the row store. "
        "Exit status 1 if something is wrong.",
    )
    parser.add_argument("--url", help="a running server to ask instead, for example http://127.0.0.1:30000")
    add_api_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report; 0 if all is fine."""
    if options.url is None:
        checks = [*_versions(), *_plugin(), *_seams(), *_device(), *_switches()]
    else:
        checks = list(doctor_server.checks(options.url.rstrip("/"), options.api_key))
    width = max(len(check.subject) for check in checks)
    for check in checks:
        print(f"{'ok  ' if check.fine else 'BAD '} {check.subject:{width}}  {check.detail}")
    return 0 if all(check.fine for check in checks) else 1


def _versions() -> Iterator[Check]:
    yield Check(True, "tessera", f"{__version__} on Python {platform.python_version()}")
    for name in PACKAGES:
        try:
            yield package(name, version(name))
        except PackageNotFoundError:
            yield Check(False, name, f"not installed; {install('engine')}")


def _plugin() -> Iterator[Check]:
    found = [e for e in entry_points(group="sglang.srt.plugins") if e.value == "tessera.plugin:register"]
    detail = "SGLang will load tessera.plugin" if found else f"not registered; {install()}"
    yield Check(len(found) == 1, "plugin", f"registered {len(found)} times" if len(found) > 1 else detail)


def _seams() -> Iterator[Check]:
    from tessera_patches.core import lock
    from tessera_patches.inventory import SEAMS

    try:
        locked = lock.load(lock.installed_version())
    except lock.VersionUnsupported as error:
        yield Check(False, "seams", str(error))
        return
    wrong = [line for seam in SEAMS for line in lock.mismatches(seam, locked)]
    for line in wrong:
        yield Check(False, "seam", line)
    yield Check(not wrong, "seams", f"{len(SEAMS) - len(wrong)} of {len(SEAMS)} match SGLang {version('sglang')}")


def _device() -> Iterator[Check]:
    without = "no CUDA driver: " + ("CPU engine" if cpu.INSTALLED else cpu.MISSING)
    yield Check(True, "device", "CUDA driver found" if driver.is_present() else without)


def _switches() -> Iterator[Check]:
    if config.disabled():
        yield Check(True, config.DISABLE, "set: the server will be the stock one, without Tessera's hooks")
    else:
        yield from (Check(True, name, f"{what}: off without {option}") for name, (what, option) in FEATURES.items())
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed:
        yield Check("tessera" in allowed.split(","), "SGLANG_PLUGINS", f"{allowed}: SGLang loads only these")
