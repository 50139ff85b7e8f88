"""nginx in front of servers, with the configuration that examples/deploy ships."""

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

CONFIG = Path(__file__).parent.parent / "examples" / "deploy" / "nginx.conf"
START_SECONDS = 10.0


@contextmanager
def nginx(*workers: str) -> Iterator[str]:
    """Yield the URL of nginx in front of these servers.

    Raises:
        RuntimeError: it does not listen in time.
    """
    port = free_port()
    config = CONFIG.read_text().replace("listen 30000", f"listen 127.0.0.1:{port}")
    lines = re.findall(r" *server server-.*\n", config)
    ours = (lines[0].replace("server-0:30000", url.removeprefix("http://")) for url in workers)
    config = config.replace("".join(lines), "".join(ours))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "nginx.conf")
        path.write_text(f"daemon off; error_log stderr; pid {folder}/pid;\n{config}")
        process = subprocess.Popen([program(), "-c", str(path)], stderr=subprocess.DEVNULL)
        try:
            if not _listens(port, process):
                raise RuntimeError(f"nginx does not listen on port {port}")
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
    said = subprocess.run([program(), "-v"], capture_output=True, text=True, check=True).stderr
    return re.sub(r".*/", "", said).strip()


def program() -> str:
    """The path of nginx: `apt-get install nginx-light`.

    Raises:
        FileNotFoundError: it is not installed.
    """
    found = shutil.which("nginx")
    if found is None:
        raise FileNotFoundError("nginx is not installed: apt-get install nginx-light")
    return found
