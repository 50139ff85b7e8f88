"""The current CUDA stream, for events that are recorded in every step."""

import torch
from triton.runtime import driver

_known: dict[tuple[int, int], torch.cuda.Stream] = {}


def record(event: torch.cuda.Event) -> None:
    """Record an event on the current stream, without torch's look-up of devices (40 µs in ``event.record()``)."""
    device = torch.cuda.current_device()
    place = device, driver.active.get_current_stream(device)
    stream = _known.get(place)
    if stream is None:
        stream = _known[place] = torch.cuda.current_stream()
    event.record(stream)
