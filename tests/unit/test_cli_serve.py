"""``tessera serve``: the line that it becomes."""

from __future__ import annotations

import pytest

from tessera.cli import main


def line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What it prints."""
    assert main(["serve", "--print", *arguments]) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU and without the variables."""
    monkeypatch.setattr("tessera.cli.serve.gpu_present", lambda: True)
    for name in ("PORT", "TENSOR_PARALLEL"):
        monkeypatch.delenv(name, raising=False)


def test_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """It can be copied into a shell, and asks for rows."""
    assert line(capsys, "/a model") == (
        "python -m sglang.launch_server --model-path '/a model' --host 127.0.0.1 --port 30000 "
        "--enable-return-hidden-states\n"
    )


def test_environment_and_options(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are defaults; SGLang's own options come last, where they win."""
    monkeypatch.setenv("PORT", "7")
    monkeypatch.setenv("TENSOR_PARALLEL", "2")
    assert "--port 7 --tp 2 --enable-return-hidden-states\n" in line(capsys, "m")
    assert "--port 8 --enable-" in line(capsys, "--port", "8", "--tp", "1", "m")
    assert line(capsys, "m", "--", "--api-key", "k").endswith("--enable-return-hidden-states --api-key k\n")
    monkeypatch.setenv("PORT", "seven")
    with pytest.raises(SystemExit):
        main(["serve", "m"])
    assert "argument --port: invalid int value: 'seven'" in capsys.readouterr().err


def test_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU engine's options."""
    monkeypatch.setattr("tessera.cli.serve.gpu_present", lambda: False)
    assert "--device cpu --attention-backend torch_native" in line(capsys, "m")


def test_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, not the traceback of a start."""
    assert main(["serve", "/no/such/model"]) == 1
    assert capsys.readouterr().err == "tessera serve: there is no /no/such/model\n"
