"""The decider of a worker: it knows what steps of this server cost. Scheduler process."""

import logging
from typing import Any

import torch

from tessera import config
from tessera.tilespec.calibration import Traffic
from tessera.tilespec.calibration_saver import CalibrationSaver
from tessera.tilespec.decider import Decider
from tessera.tilespec.follower import Follower
from tessera.tilespec.refusals import why_no_rejection_sampling
from tessera.tilespec.tally import Tally
from tessera_patches.core.apply import foreign_class_error
from tessera_patches.engine.options import options
from tessera_patches.engine.ranks import broadcast_object, tp_rank, tp_size
from tessera_patches.tilespec.start import late_compiles
from tessera_patches.tilespec.start import profile as tilespec_profile
from tessera_patches.tilespec.start.failures import exit_with_traceback
from tessera_patches.tilespec.start.warm_up import on_forward_stream
from tessera_patches.tilespec.worker import AdaptiveWorker

logger = logging.getLogger(__name__)


def give_decider(result: None, scheduler: Any) -> None:
    """AFTER ``Scheduler.init_model_worker``, when graphs and KV pool exist, and nothing is served yet."""
    worker = scheduler.draft_worker
    if not isinstance(worker, AdaptiveWorker):
        raise foreign_class_error(worker, "our hook on SpeculativeAlgorithm.create_worker")
    worker.decide_by(measured_decider(worker))


def measured_decider(worker: Any) -> Decider | Follower:
    """Measure or load the cost profile. To be called when graphs exist and nothing is served yet.

    Args:
        worker: a `tessera_patches.tilespec.worker.AdaptiveWorker`; steps are measured with other deciders.

    Returns:
        what decides for the worker: on the first rank of several a `Decider`, on the others its `Follower`.
    """
    args = options(worker)
    if tp_rank() == 0:
        _log_draft_sampling(args)
    with exit_with_traceback("measuring steps"), on_forward_stream(worker):
        unknown = worker.new_calibration(), worker.new_calibration()
        known = tilespec_profile.profile(worker, worker.runtime.by_steps, worker.graphs, unknown)
    for traffic, calibration in zip(Traffic, known.calibrations, strict=True):
        worker.scores.refit(traffic, calibration.logits())
    late_compiles.warn()
    if tp_rank() > 0:
        return Follower(worker.scores, broadcast_object)
    device, trace = torch.device(worker.device).type, config.flags.tile_spec_trace
    tally = Tally(args.served_model_name, known.costs) if args.enable_metrics else None
    save = CalibrationSaver(known).save if known.facts else None  # nominal costs are not cached
    broadcast = None if tp_size() == 1 else broadcast_object
    return Decider(known.costs, worker.scores, known.calibrations, device, trace, tally, save, broadcast)


def _log_draft_sampling(args: Any) -> None:
    why = why_no_rejection_sampling(args, unwanted=config.flags.tile_spec_no_rejection_sampling)
    chosen = "samples drafts, and accepts them by rejection sampling" if why is None else "drafts likeliest tokens"
    logger.info("tessera: --tile-spec %s%s", chosen, "" if why is None else f": {why}")
