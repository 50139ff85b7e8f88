r"""A writer of minimal ELF64 shared objects: a few C functions that each return one constant.

The layout follows the System V gABI, chapters 4 and 5 (https://gabi.xinuos.com). The file holds what a dynamic linker
reads and no section headers, which only link editors and debuggers need::

    0x000  ELF header, four program headers        \
           symbol table, hash table, string table   | segment 1, read + execute
           machine code                            /
           dynamic section                            segment 2, read + write
"""

import struct
from collections.abc import Mapping

# e_machine by the name that platform.machine() gives: the processors that shared_object can write for.
MACHINES = {"x86_64": 62, "aarch64": 183}

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SYM = struct.Struct("<IBBHQQ")
_DYN = struct.Struct("<QQ")

_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_PF_X, _PF_W, _PF_R = 1, 2, 4
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14
_ET_DYN, _EV_CURRENT, _STB_GLOBAL_STT_FUNC = 3, 1, (1 << 4) | 2
_HEADERS_SIZE = _EHDR.size + 4 * _PHDR.size
_LARGEST_CONSTANT = 0xFFFF
# The largest page of either machine (aarch64 kernels may use 64 KiB): segments with different rights share no page.
_PAGE = 0x10000


def shared_object(soname: str, functions: Mapping[str, int], machine: str) -> bytes:
    """Return the bytes of a shared library whose functions return constants.

    Args:
        soname: the ``DT_SONAME`` under which the dynamic linker knows the library once it is loaded.
        functions: the constant, 0 to 65535, that each exported C function returns as an ``int``.
        machine: ``x86_64`` or ``aarch64``.

    Raises:
        ValueError: an unknown machine, no function, or a constant out of range.
    """
    if machine not in MACHINES:
        raise ValueError(f"no machine code for {machine!r}: expected one of {', '.join(MACHINES)}")
    if not functions:
        raise ValueError("a shared object needs at least one function")
    strings = _string_table([soname, *functions])
    symbols_at = _HEADERS_SIZE
    hash_at = symbols_at + _SYM.size * (len(functions) + 1)
    hashes = _hash_table(len(functions) + 1)
    strings_at = hash_at + len(hashes)
    code_at = _aligned(strings_at + len(strings))
    codes = [_return_constant(value, machine) for value in functions.values()]
    code_end = code_at + sum(map(len, codes))
    dynamic_at = _aligned(code_end)
    dynamic = _dynamic_section(strings_at, len(strings), symbols_at, hash_at, _offset(strings, soname))

    body = _symbol_table(list(functions), codes, code_at, strings) + hashes + strings
    body = body.ljust(code_at - symbols_at, b"\0") + b"".join(codes)
    body = body.ljust(dynamic_at - symbols_at, b"\0") + dynamic
    return _headers(MACHINES[machine], code_end, dynamic_at, len(dynamic)) + body


def _headers(machine: int, text_size: int, dynamic_at: int, dynamic_size: int) -> bytes:
    ident = b"\x7fELF" + bytes([2, 1, _EV_CURRENT])  # 64 bit, little endian
    header = _EHDR.pack(ident, _ET_DYN, machine, _EV_CURRENT, 0, _EHDR.size, 0, 0, _EHDR.size, _PHDR.size, 4, 0, 0, 0)
    address = _PAGE + dynamic_at
    # The dynamic section is writable because glibc before 2.35 relocates its entries in place.
    segment = (dynamic_at, address, address, dynamic_size, dynamic_size)
    return b"".join(
        [
            header,
            _PHDR.pack(_PT_LOAD, _PF_R | _PF_X, 0, 0, 0, text_size, text_size, _PAGE),
            _PHDR.pack(_PT_LOAD, _PF_R | _PF_W, *segment, _PAGE),
            _PHDR.pack(_PT_DYNAMIC, _PF_R | _PF_W, *segment, 8),
            # Without this entry glibc takes the library to need an executable stack, and newer versions refuse it.
            _PHDR.pack(_PT_GNU_STACK, _PF_R | _PF_W, 0, 0, 0, 0, 0, 16),
        ]
    )


def _return_constant(value: int, machine: str) -> bytes:
    if not 0 <= value <= _LARGEST_CONSTANT:
        raise ValueError(f"cannot return {value}: expected 0 to {_LARGEST_CONSTANT}")
    if machine == "x86_64":
        return struct.pack("<BIBxx", 0xB8, value, 0xC3)  # mov eax, value; ret
    return struct.pack("<II", 0x52800000 | value << 5, 0xD65F03C0)  # movz w0, value; ret


def _string_table(names: list[str]) -> bytes:
    return b"\0" + b"".join(name.encode() + b"\0" for name in names)


def _offset(strings: bytes, name: str) -> int:
    return strings.index(name.encode() + b"\0")


def _symbol_table(names: list[str], codes: list[bytes], code_at: int, strings: bytes) -> bytes:
    entries = [bytes(_SYM.size)]
    for name, code in zip(names, codes, strict=True):
        # Section index 1 names no section; it only has to differ from 0, which means undefined.
        entries.append(_SYM.pack(_offset(strings, name), _STB_GLOBAL_STT_FUNC, 0, 1, code_at, len(code)))
        code_at += len(code)
    return b"".join(entries)


def _hash_table(symbols: int) -> bytes:
    # One bucket whose chain visits every symbol: correct for any names, and fast enough for a few.
    chain = [0, *range(2, symbols), 0]
    return struct.pack(f"<{3 + symbols}I", 1, symbols, 1, *chain)


def _dynamic_section(strings_at: int, strings_size: int, symbols_at: int, hash_at: int, soname_at: int) -> bytes:
    entries = [
        (_DT_SONAME, soname_at),
        (_DT_HASH, hash_at),
        (_DT_STRTAB, strings_at),
        (_DT_STRSZ, strings_size),
        (_DT_SYMTAB, symbols_at),
        (_DT_SYMENT, _SYM.size),
        (_DT_NULL, 0),
    ]
    return b"".join(_DYN.pack(tag, value) for tag, value in entries)


def _aligned(offset: int) -> int:
    return (offset + 15) & ~15
