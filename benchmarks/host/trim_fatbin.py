"""Leave in a library only the GPU code that one architecture runs, for a pack that travels.

    python3 benchmarks/host/trim_fatbin.py LIBRARY OUT 90 [--drop NAME...]

A section with GPU code is a row of containers, one for each compiled file, each a row of entries, one for each
architecture. Offsets into the section stay: kept entries move to their container's start, what they leave is zeros,
which compress to nothing. A container of which nothing runs there keeps its smallest entry, as files that were compiled
for another architecture alone have in every release.
"""

import argparse
import pathlib
import re
import struct
import subprocess
from collections.abc import Iterator

CONTAINER = struct.Struct("<IHHQ")  # magic, version, size of this header, size of all entries
ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, size of this header, size of the code; architecture, such as 90
MAGIC = 0xBA55ED50
ELF = 2  # kind: machine code; 1 is PTX
KERNEL = re.compile(rb"\.text\.(\w+)")


def sections(library: pathlib.Path) -> Iterator[tuple[int, int]]:
    """Offset and size, in bytes, of each section with GPU code: linked, and still to be linked."""
    text = subprocess.run(["readelf", "-SW", library], check=True, capture_output=True, text=True).stdout  # noqa: S607
    for line in text.splitlines():
        fields = line.replace("[", "").replace("]", "").split()
        if len(fields) > 5 and fields[1] in (".nv_fatbin", "__nv_relfatbin"):
            yield int(fields[4], 16), int(fields[5], 16)


def entries(code: bytearray, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Kind, architecture and bytes of each entry between two offsets."""
    while start < end:
        kind, _, header, size, architecture = ENTRY.unpack_from(code, start)
        yield kind, architecture, bytes(code[start : start + header + size])
        start += header + size


def useless(found: list[tuple[int, int, bytes]], drop: list[bytes]) -> bool:
    """Whether all kernels of a container have one of `drop` in their names. Compressed code shows none."""
    names = {name for _, _, entry in found for name in KERNEL.findall(entry)}
    return bool(names) and all(any(part in name for part in drop) for name in names)


def trim(library: pathlib.Path, architecture: int, drop: list[bytes]) -> tuple[bytearray, int]:
    """The library with code of `architecture` only, and how many bytes of it are left.

    Args:
        library: an ELF file.
        architecture: such as 90.
        drop: files whose kernels all have one of these in their names are left out, too.
    """
    code, left = bytearray(library.read_bytes()), 0
    for first, size in sections(library):
        place, end = first, first + size
        while place < end:
            magic, version, header, length = CONTAINER.unpack_from(code, place)
            if magic != MAGIC:
                raise ValueError(f"{library}: no container at {place:#x}; is this another format?")
            start = place + header
            found = list(entries(code, start, start + length))
            kept = [entry for kind, arch, entry in found if kind == ELF and arch == architecture]
            kept = kept or [entry for kind, arch, entry in found if kind != ELF and arch <= architecture]
            if not kept or useless(found, drop):
                kept = [min((entry for _, _, entry in found), key=len)] if found else []
            content = b"".join(kept)
            left += len(content)
            code[start : start + length] = content + bytes(length - len(content))
            CONTAINER.pack_into(code, place, magic, version, header, len(content))
            place = start + length
    return code, left


def main() -> None:
    """Write the smaller library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("architecture", type=int)
    parser.add_argument("--drop", nargs="*", default=[])
    args = parser.parse_args()
    code, left = trim(args.library, args.architecture, [name.encode() for name in args.drop])
    args.out.write_bytes(code)
    print(f"{args.library.name}: {left >> 20} MiB of GPU code are left")


if __name__ == "__main__":
    main()
