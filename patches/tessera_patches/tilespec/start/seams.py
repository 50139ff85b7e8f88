"""The start: what is watched from when it has ended."""

from tessera_patches.core.seam import Guard, Hook, Seam

SEAMS = (
    Seam(
        target="triton.knobs.compilation_knobs.listener",
        hook=Hook.METHOD,
        feature="tilespec",
        handler="tessera_patches.tilespec.start.late_compiles:warn",
        guard=Guard.FIELD,
        why="Triton's, of the whole process: warns of kernels that are compiled while requests wait.",
        remove_when="SGLang warns of kernels that are compiled while requests wait.",
        callers=("triton.compiler.compiler.compile",),
    ),
)
