"""The shared object that is written from Python: its format, and that the dynamic linker takes it."""

from __future__ import annotations

import json
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tessera_kernels.cpu import elf

FUNCTIONS = {"first": 100, "second": 0, "third": 0xFFFF}


def c_string(data: bytes, offset: int) -> str:
    """Return the string that starts at ``offset``."""
    return data[offset : data.index(b"\0", offset)].decode()


def program_headers(data: bytes) -> list[tuple[int, ...]]:
    """Return the fields of each program header."""
    offset, size, count = struct.unpack_from("<Q14xHH", data, 32)
    assert size == 56
    return [struct.unpack_from("<IIQQQQQQ", data, offset + size * i) for i in range(count)]


def dynamic_entries(data: bytes) -> dict[int, int]:
    """Return the values of the dynamic section by tag."""
    (offset, size), *others = [(header[2], header[5]) for header in program_headers(data) if header[0] == 2]
    assert not others
    pairs = list(struct.iter_unpack("<QQ", data[offset : offset + size]))
    assert pairs[-1] == (0, 0)
    return {tag: value for tag, value in pairs if tag}


def exported_code(data: bytes) -> dict[str, bytes]:
    """Walk the hash table as a dynamic linker does; return the machine code of each function."""
    dynamic = dynamic_entries(data)
    buckets, chains, symbol, *chain = struct.unpack_from(f"<3I{len(FUNCTIONS) + 1}I", data, dynamic[4])
    assert (buckets, chains) == (1, len(FUNCTIONS) + 1)
    found = {}
    while symbol:
        name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", data, dynamic[6] + 24 * symbol)
        assert (info, section != 0) == (0x12, True)  # a global function that is defined
        found[c_string(data, dynamic[5] + name)] = data[value : value + size]
        symbol = chain[symbol]
    return found


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_headers_say_what_the_gabi_asks_for(machine: str, number: int) -> None:
    """A 64-bit little-endian shared object, with its name and its functions' names."""
    data = elf.shared_object("libx.so.1", FUNCTIONS, machine)
    assert data[:7] == b"\x7fELF\x02\x01\x01"
    assert struct.unpack_from("<HHI", data, 16) == (3, number, 1)  # a shared object, for this machine
    dynamic = dynamic_entries(data)
    assert c_string(data, dynamic[5] + dynamic[14]) == "libx.so.1"
    assert set(FUNCTIONS) <= set(data[dynamic[5] : dynamic[5] + dynamic[10]].decode().split("\0"))


@pytest.mark.parametrize("machine", elf.MACHINES)
def test_no_memory_is_both_writable_and_executable(machine: str) -> None:
    """Code and dynamic section lie in segments of their own, on pages of their own."""
    data = elf.shared_object("libx.so.1", FUNCTIONS, machine)
    headers = program_headers(data)
    loads = [header for header in headers if header[0] == 1]
    assert [header[1] for header in loads] == [0b101, 0b110]  # read + execute, then read + write
    for _, _, offset, address, _, in_file, in_memory, alignment in loads:
        assert offset % alignment == address % alignment
        assert offset + in_file <= len(data)
        assert in_file == in_memory
    assert loads[0][3] // 0x10000 != loads[1][3] // 0x10000  # no page of 64 KiB has both
    assert [header[1] for header in headers if header[0] == 0x6474E551] == [0b110]  # the stack


def test_machine_code_returns_the_constants() -> None:
    """What the hash table finds is the code that an assembler writes."""
    x86 = exported_code(elf.shared_object("libx.so.1", FUNCTIONS, "x86_64"))
    assert x86 == {
        "first": bytes.fromhex("b864000000c30000"),
        "second": bytes.fromhex("b800000000c30000"),
        "third": bytes.fromhex("b8ffff0000c30000"),
    }
    arm = exported_code(elf.shared_object("libx.so.1", FUNCTIONS, "aarch64"))
    assert arm == {
        "first": bytes.fromhex("800c8052c0035fd6"),
        "second": bytes.fromhex("00008052c0035fd6"),
        "third": bytes.fromhex("e0ff9f52c0035fd6"),
    }


@pytest.mark.parametrize(
    ("functions", "machine", "message"),
    [
        (FUNCTIONS, "riscv64", "no machine code for 'riscv64': expected one of x86_64, aarch64"),
        ({"f": 0x10000}, "x86_64", "cannot return 65536: expected 0 to 65535"),
        ({"f": -1}, "aarch64", "cannot return -1"),
        ({}, "x86_64", "at least one function"),
    ],
)
def test_bad_requests_are_refused(functions: dict[str, int], machine: str, message: str) -> None:
    """The message names the value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        elf.shared_object("libx.so.1", functions, machine)


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in elf.MACHINES, reason="loads a library written for Linux"
)
def test_dynamic_linker_loads_it_and_calls_every_function(tmp_path: Path) -> None:
    """The platform's own linker finds it by path, then by its name."""
    library = tmp_path / "anything.so"
    library.write_bytes(elf.shared_object("libx.so.1", FUNCTIONS, platform.machine()))
    code = f"""
import ctypes, json
by_path = ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL)
by_soname = ctypes.CDLL("libx.so.1")
names = {list(FUNCTIONS)!r}
print(json.dumps([[getattr(lib, name)() for name in names] for lib in (by_path, by_soname)] + [hasattr(by_path, "x")]))
"""
    answer = json.loads(subprocess.check_output([sys.executable, "-c", code]))
    assert answer == [list(FUNCTIONS.values())] * 2 + [False]
