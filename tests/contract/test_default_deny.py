"""Options of SGLang are allowed, or refused with a reason; one that nobody has looked at is refused too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sglang.srt.server_args import ServerArgs

from tessera.config import Settings
from tessera_patches.engine import options
from tessera_patches.launch import default_deny, server_args
from tessera_testing.server_options import server_options

ON = "--enable-return-hidden-states, --tile-spec"


def test_every_option_is_known() -> None:
    """With each feature. One that is found here is new in this SGLang: look at what it does to each, then list it."""
    names = getattr(ServerArgs, "__struct_fields__", None) or ServerArgs.__dataclass_fields__
    assert default_deny.lists().unknown(names, default_deny.FEATURES) == []


def test_what_one_feature_refuses_is_not_known_of_another() -> None:
    """Unless its own table, or the file, says so."""
    known = default_deny.lists()
    assert known.unknown(["pp_size", "enable_lora", "enable_unified_memory"], ["tilespec"]) == []
    assert default_deny.Lists([], {"rows": {"a", "b"}, "inject": {"b"}}, {}).unknown("abc", ["rows", "inject"]) == [
        "a",
        "c",
    ]


def test_one_is_listed_once() -> None:
    """What a feature refuses is not allowed to all, nor refused to all."""
    known = default_deny.lists()
    counts = Counter([*known.allowed, *set().union(*known.by_feature.values()), *known.refused])
    assert [name for name, count in counts.items() if count > 1] == []


def test_an_option_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has a value of its own, and a feature is on."""
    args: Any = ServerArgs(model_path="dummy")
    assert default_deny.refused(args, Settings(rows=True, tilespec=True)) == []
    changed = {"page_size": 2, "new_one": 0, "uno_lora_path": "folder"}
    monkeypatch.setattr(default_deny, "changed", lambda _: changed)
    assert default_deny.refused(args, Settings()) == []
    assert default_deny.refused(args, Settings(rows=True, tilespec=True)) == [
        f"--uno-lora-path cannot be combined with {ON}: SGLang alone did not serve with it where it was tried",
        f"--new-one cannot be combined with {ON}: nobody has looked at what it does there",
    ]


def test_changed_options() -> None:
    """Those with a default, by their fields."""
    assert options.changed(ServerArgs(model_path="dummy", random_seed=7)) == {"random_seed": 7}


def test_defaults_of_sampling_parameters() -> None:
    """What SGLang adds to requests behind our checks is held to the same."""

    def refused(params: Any) -> list[str]:
        return server_args._refused_defaults(server_options(preferred_sampling_params=params))

    assert refused(None) == refused({"temperature": 0.5}) == []
    (line,) = refused({"beam_width": 4})
    assert line.startswith("--preferred-sampling-params: sampling_params.beam_width: got 4; allowed: ")
