"""``pip install 'sglang-tessera[client]'`` is enough: neither SGLang nor torch is needed, nor anything of theirs."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distribution, packages_distributions

from packaging.requirements import Requirement

HIDE = """
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

MISSING = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Missing())
"""
CLIENT = """
import tessera.client
from tessera.cli import main

with tessera.client.Client("http://127.0.0.1:9") as client:
    try:
        client.encode_batch(["a"] * 300)
    except tessera.client.ConnectionFailed as error:
        print(error)
try:
    tessera.client.connect("some/model")
except tessera.client.Unsupported as error:
    print(error)
sys.exit(main(["check", "http://127.0.0.1:9"]))
"""
COMMANDS = """
from tessera.cli import main
sys.exit(main(["check"]))
"""


def closure(name: str, extras: frozenset[str]) -> set[str]:
    """Names of all distributions that one requires, itself included."""
    found = {normal(name)}
    for line in distribution(name).requires or []:
        required = Requirement(line)
        marked = required.marker is None or any(required.marker.evaluate({"extra": e}) for e in (*extras, ""))
        if marked and normal(required.name) not in found:
            found |= closure(required.name, frozenset(required.extras))
    return found


@functools.cache
def owners_of_modules() -> Mapping[str, list[str]]:
    """Distributions that bring each importable name; all of them are read for it."""
    return packages_distributions()


def normal(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def run(program: str, extras: frozenset[str]) -> subprocess.CompletedProcess[str]:
    """Run it where only the base and these extras can be imported: every other package here is hidden."""
    allowed = closure("sglang-tessera", extras)
    assert not {"torch", "sglang", "transformers", "safetensors", "orjson", "pydantic"} & allowed
    owners = owners_of_modules()
    missing = [module for module, names in owners.items() if not {normal(name) for name in names} & allowed]
    assert {"torch", "sglang", "safetensors", "orjson"} <= set(missing)
    command = [sys.executable, "-c", HIDE + program, ",".join(missing)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_but_the_client_extra_is_imported() -> None:
    """The client works up to the network."""
    found = run(CLIENT, frozenset({"client"}))
    assert found.returncode == 1, found.stderr
    refused, local, checked, _ = found.stdout.splitlines()
    assert "nothing answers at http://127.0.0.1:9" in refused
    assert "pip install 'sglang-tessera[local]'" in local
    assert checked.startswith("FAIL  generates a token")


def test_commands_of_the_base() -> None:
    """Without any extra the command still runs, and says what is missing."""
    found = run(COMMANDS, frozenset())
    assert found.returncode == 1, found.stderr
    assert "pip install 'sglang-tessera[client]'" in found.stdout
