"""Which SGLang is installed, and what of the inventory is in a version of it."""

from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet


def installed() -> str | None:
    """The installed version; None where SGLang is not installed."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def within(sglang_version: str, specifier: str) -> bool:
    """Whether a version is one of a specifier's (PEP 440), such as ``<0.5.20``; "" is all."""
    return SpecifierSet(specifier).contains(sglang_version, prereleases=True)


def of_version(paths: tuple[str, ...], sglang_version: str) -> tuple[str, ...]:
    """The dotted paths that a version has.

    Args:
        paths: those of some versions alone end with a specifier, as a requirement does: ``sglang.a.b; <0.5.20``.
        sglang_version: the version.
    """
    split = [path.partition("; ") for path in paths]
    return tuple(path for path, _, specifier in split if within(sglang_version, specifier))
