"""How to install what is missing. The name is on no package index yet: the one place that says so."""


def install(extra: str = "") -> str:
    """What to run for one of the extras of ``setup.py``, or for the package alone."""
    what = f"'.[{extra}]'" if extra else "."
    return f"run in a checkout of Tessera: pip install {what}"


def in_checkout(what: str) -> str:
    """What to do about something that the wheel leaves out."""
    return f"{what} is in a checkout of Tessera alone: run in it: pip install -e ."
