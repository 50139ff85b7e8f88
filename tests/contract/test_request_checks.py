"""All fields that SGLang's classes of a request have are checked: a new one is looked at before a version is added."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fastapi.dependencies import utils as fastapi
from sglang.srt.managers import io_struct
from sglang.srt.sampling.sampling_params import SamplingParams

from tessera import request_fields, sampling
from tessera.errors import BadRequest
from tessera_patches.core.seam import Seam
from tessera_patches.http import invalid, offline
from tessera_patches.inject.request import refuse_images
from tessera_patches.inventory import SEAMS
from tessera_testing.news import COMPUTED, REFUSED


def test_sampling_parameters() -> None:
    """Each has its bounds."""
    fields = set(SamplingParams.__struct_fields__)
    assert {*sampling.NAMES} <= fields - COMPUTED <= {*sampling.NAMES, *sampling.LATER}


def test_fields() -> None:
    """Each is checked by us, on purpose by its type alone, or refused."""
    assert set(io_struct.GenerateReqInput.__dataclass_fields__) <= {*request_fields.KNOWN, *REFUSED}
    assert not request_fields.KNOWN & REFUSED


def test_a_field_that_nobody_classified_is_refused() -> None:
    """By name, where it has a value of its own."""
    request = SimpleNamespace(text="a", new_one=None)
    request_fields.refuse_unknown(request, {"new_one": None})
    request.new_one = 1
    with pytest.raises(BadRequest, match="new_one: got 1; allowed: nothing"):
        request_fields.refuse_unknown(request, {"new_one": None})


def names(*seams: Seam) -> set[str]:
    """The last names of what they need of SGLang's."""
    return {path.rpartition(".")[2] for seam in seams for path in seam.guards}


def test_what_raises_for_a_clients_mistake_is_there() -> None:
    """An answer's status depends on the names of these functions: SGLang's are in the lock, FastAPI's exists."""
    using = [seam for seam in SEAMS if seam.handler == "tessera_patches.http.invalid:install"]
    assert {invalid._TEMPLATE, *invalid._PARSERS} <= names(*using)
    assert invalid._ENGINE in names(*SEAMS)
    assert callable(getattr(fastapi, invalid._READER))


def test_vectors_beside_images_are_refused() -> None:
    """What stands for an image is no token of the prompt's."""
    refuse_images(io_struct.GenerateReqInput(text="a", image_data=[]))
    with pytest.raises(BadRequest, match="allowed: none where there are images"):
        refuse_images(io_struct.GenerateReqInput(text="a", image_data=["a.png"]))


def test_keywords_that_no_request_takes_are_an_error() -> None:
    """Of ``sgl.Engine``: the answer would come without what they ask for."""
    assert offline.generate(lambda *_, **stock: stock, None, "text", stream=False) == {"stream": False}
    with pytest.raises(RuntimeError, match="return_embedding: SGLang made no request"):
        offline.generate(lambda *_, **stock: stock, None, "text", return_embedding=True)
