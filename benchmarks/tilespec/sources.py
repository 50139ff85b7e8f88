"""The rig's text: Python sources of this machine, the standard library and every installed package.

Read on the host where the models are made; nothing of it is stored here. A file is in training or held out by a hash of
its content, so that copies of one file in two packages are on the same side.
"""

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tiny_training.vocabulary import BOS, EOS
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm

LEAST_BYTES, MOST_BYTES = 400, 200_000
"""Shorter files are imports; longer ones are tables."""
HELD_OUT_ONE_IN = 50
DOCUMENTS_AT_ONCE = 512


def roots(*, packages: bool) -> list[Path]:
    """The standard library, and with `packages` wherever this interpreter finds any."""
    paths = [sysconfig.get_paths()["stdlib"], *(sys.path if packages else ())]
    return sorted({Path(path).resolve() for path in paths if path and Path(path).is_dir()})


def read_sources(megabytes: int, *, packages: bool) -> tuple[list[str], list[str]]:
    """Training and held-out texts, at most `megabytes` of them together; the same files give the same choice.

    Raises:
        SystemExit: there is nothing to train on.
    """
    chosen = sorted(_distinct_files(roots(packages=packages)))
    train: list[str] = []
    held_out: list[str] = []
    left = megabytes * 1_000_000
    for digest, path in tqdm(chosen, desc="sources", unit="file"):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        left -= len(text)
        (held_out if int(digest[-8:], 16) % HELD_OUT_ONE_IN == 0 else train).append(text)
        if left < 0:
            break
    if not train or not held_out:
        sys.exit(f"too few Python sources in {', '.join(map(str, roots(packages=packages)))}")
    return train, held_out


def read_tokens(path: Path, device: torch.device | str) -> Tensor:
    """A stored stream or table of tokens: int64, on the device."""
    return load_file(path, device=str(device))["tokens"].long()


def _distinct_files(folders: list[Path]) -> Iterator[tuple[str, Path]]:
    seen = set()
    for root in folders:
        for path in root.rglob("*.py"):
            if not path.is_file() or not LEAST_BYTES <= path.stat().st_size <= MOST_BYTES:
                continue
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest not in seen:
                seen.add(digest)
                yield digest, path


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """All texts as one stream of whole documents: int64 [tokens]."""
    pieces = []
    for start in tqdm(range(0, len(texts), DOCUMENTS_AT_ONCE), desc="tokens", unit="chunk"):
        documents = [f"{BOS}{text}{EOS}" for text in texts[start : start + DOCUMENTS_AT_ONCE]]
        # In chunks, and as arrays: a Python list of 100 million ids takes 4 GB.
        pieces += [
            np.array(one.ids, dtype=np.uint16) for one in tokenizer.encode_batch(documents, add_special_tokens=False)
        ]
    return torch.from_numpy(np.concatenate(pieces).astype(np.int64))
