"""``pip install '.[client]'`` is enough: neither SGLang nor torch is needed, nor anything of theirs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distribution

from packaging.requirements import Requirement

OURS = {"tessera", "tessera_kernels", "tessera_patches"}
"""Named here: the files of an editable install are its finder and no package."""
HIDE = """
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

ALLOWED = {*sys.argv[1].split(","), *sys.stdlib_module_names}
sys.meta_path.insert(0, Missing())
"""
CLIENT = """
import tessera.client
from tessera.cli import main

with tessera.client.Client("http://127.0.0.1:9", retry=tessera.client.Retry(times=0)) as client:
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


def modules(name: str) -> set[str]:
    """Importable names that a distribution brings, by its list of files."""
    return {file.parts[0].partition(".")[0] for file in distribution(name).files or [] if file.suffix in {".py", ".so"}}


def normal(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def run(program: str, extras: frozenset[str]) -> subprocess.CompletedProcess[str]:
    """Run it where only the base and these extras can be imported: every other package here is hidden."""
    allowed = closure("sglang-tessera", extras)
    assert not {"torch", "sglang", "transformers", "safetensors", "orjson", "pydantic"} & allowed
    names = OURS.union(*map(modules, allowed))
    command = [sys.executable, "-c", HIDE + program, ",".join(names)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_but_the_client_extra_is_imported() -> None:
    """The client works up to the network."""
    found = run(CLIENT, frozenset({"client"}))
    assert found.returncode == 1, found.stderr
    refused, local, checked, _ = found.stdout.splitlines()
    assert "nothing answers at http://127.0.0.1:9" in refused
    assert "pip install '.[local]'" in local
    assert checked.startswith("FAIL  generates a token")


def test_commands_of_the_base() -> None:
    """Without any extra the command still runs, and says what is missing."""
    found = run(COMMANDS, frozenset())
    assert found.returncode == 1, found.stderr
    assert "pip install '.[client]'" in found.stdout
