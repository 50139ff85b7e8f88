"""Which SGLang is installed, and which specifiers its version is one of."""

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
