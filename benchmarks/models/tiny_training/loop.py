"""The training loop that both models go through."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from tiny_training.forward import Model
from tiny_training.journal import Journal

GRADIENT_NORM = 1.0
WARM_UP = 0.03
#: The rate ends at this part of its peak.
FINAL_RATE = 0.01
#: The last part of the steps sees long windows, so that late positions are trained.
LONG_PART = 0.15
#: How often the held-out loss is measured during a training.
CHECKS = 12


@dataclass(frozen=True)
class Plan:
    """How long, on how much, and how fast one model is trained.

    Windows are in tokens; the peak rate and the decay are AdamW's. Every step sees `rows * window`
    tokens, in `long_window` pieces towards the end.
    """

    name: str
    steps: int
    rows: int
    window: int
    long_window: int
    peak_rate: float
    weight_decay: float

    def batch_shape(self, step: int) -> tuple[int, int]:
        """(rows, window) of this step's batch."""
        if step < self.steps * (1 - LONG_PART):
            return self.rows, self.window
        return max(1, self.rows * self.window // self.long_window), self.long_window

    def rate(self, step: int) -> float:
        """Learning rate: a linear warm-up, then a cosine down to `FINAL_RATE`."""
        warm_up = max(1, round(self.steps * WARM_UP))
        if step < warm_up:
            return self.peak_rate * (step + 1) / warm_up
        progress = (step - warm_up) / max(1, self.steps - warm_up)
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return self.peak_rate * (FINAL_RATE + (1 - FINAL_RATE) * cosine)


def optimizer_for(model: Model, plan: Plan) -> torch.optim.Optimizer:
    """AdamW; the norms' gains are not decayed."""
    parameters = list(model.parameters())
    matrices = [weight for weight in parameters if weight.ndim > 1]
    gains = [weight for weight in parameters if weight.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": gains, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.peak_rate, betas=(0.9, 0.95), fused=parameters[0].is_cuda)


def train(
    model: Model,
    plan: Plan,
    loss_at: Callable[[int], Tensor],
    check: Callable[[], dict[str, float]],
    journal: Journal,
) -> None:
    """Minimise `loss_at(step)` (nats per token) over the plan's steps.

    `check` measures the model on held-out text; what it returns is logged.
    """
    optimizer = optimizer_for(model, plan)
    every_check = -(-plan.steps // CHECKS)
    start = time.monotonic()
    bar = tqdm(range(plan.steps), desc=plan.name, unit="step", mininterval=1)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step)
        loss = loss_at(step)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
        done = step + 1
        if done % journal.every == 0 or done == plan.steps:
            bar.set_postfix(loss=f"{loss.item():.3f}")
            journal.write(
                "loss",
                model=plan.name,
                step=done,
                loss=loss.item(),
                gradient_norm=norm.item(),
                rate=plan.rate(step),
                seconds=time.monotonic() - start,
            )
        if done % every_check == 0 or done == plan.steps:
            journal.write("check", model=plan.name, step=done, **check())
