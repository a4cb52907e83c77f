"""Token files, mapped into memory. Which samples a micro-batch of a step has is arithmetic: a run can begin anywhere.

Must not know: models, devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fairlead.base.trust import open_file
from fairlead.errors import TrainError
from fairlead.train import packing
from fairlead.train.config import Config

_POSITIONS = ("wpe", "embed_positions", "position_embeddings", "positions_embed")
"""Modules by which models look up positions: GPT-2 and its kin, OPT and BioGPT, BERT's kin, OpenAI GPT."""


class Tokens:
    """The samples of a run."""

    def __init__(self, config: Config, base: Path) -> None:
        data, run = config.data, config.run
        self.rows, self.accumulation, self.seed = run.rows, run.accumulation, run.seed
        self.shuffled = data.order == "shuffled"
        files = _files(config, base)
        self.arrays = {key: _mapped(path) for key, path in files.items()}
        shape = self.arrays["input_ids"].shape
        for key, path in files.items():
            if self.arrays[key].shape != shape:
                raise _unfit(path, f"has shape {self.arrays[key].shape}, the tokens have {shape}")
        self.num, self.length = shape
        self.made_of = files["input_ids"].parent.name if data.text else ""
        """The digest of texts and tokenizer."""
        self._real = self.arrays.get("attention_mask")
        if data.text and data.pack:
            del self.arrays["attention_mask"]  # positions say which token sees which, padding included
        self._epoch = (-1, np.empty(0, np.int64))
        self.vocab = 0
        """Words of the model; 0: not known yet."""

    def fit(self, model: Any) -> None:
        """Take the model's sizes. Raises TrainError where samples are longer than its table of positions."""
        self.vocab = len(model.get_input_embeddings().weight)  # an adapter around it has no more
        for name, module in model.named_modules():
            is_positions = isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _POSITIONS
            room = module.num_embeddings - getattr(module, "offset", 0) if is_positions else self.length
            if room < self.length:
                raise TrainError(
                    "train/data",
                    f"samples have {self.length:,} tokens, and {type(model).__name__} has {room:,} positions",
                    hint="make samples shorter",
                )

    def step(self, step: int) -> list[dict[str, torch.Tensor]]:
        """The micro-batches of a step, counted from 0; after the last sample comes the first of the next epoch."""
        first = step * self.accumulation * self.rows
        return [
            self._batch(range(first + k * self.rows, first + (k + 1) * self.rows)) for k in range(self.accumulation)
        ]

    def real(self, step: int) -> int:
        """Tokens of a step that are no padding."""
        if self._real is None:
            return self.accumulation * self.rows * self.length
        return int(self._real[self.samples(step)].sum())

    def samples(self, step: int) -> list[int]:
        """The rows of the files that a step has, in its order."""
        num = self.accumulation * self.rows
        return [self._sample(place) for place in range(step * num, (step + 1) * num)]

    def _batch(self, places: range) -> dict[str, torch.Tensor]:
        chosen = [self._sample(place) for place in places]
        batch = {key: torch.from_numpy(array[chosen].astype(np.int64)) for key, array in self.arrays.items()}
        self._check(chosen, batch)
        positions, mask = batch.get("position_ids"), batch.get("attention_mask")
        if positions is not None and mask is not None:
            packing.check_mask(positions.numpy(), mask.numpy())
        if "labels" not in batch:
            batch["labels"] = batch["input_ids"].clone()
            if mask is not None:
                batch["labels"][mask == 0] = packing.IGNORED
            elif positions is not None:  # no text says what the next one begins with
                batch["labels"][torch.from_numpy(packing.begins(positions.numpy()))] = packing.IGNORED
        return batch

    def _check(self, chosen: list[int], batch: dict[str, torch.Tensor]) -> None:
        """Raise TrainError where a token or a target is no word of the model."""
        for key, none in (("input_ids", 0), ("labels", packing.IGNORED)):
            values = batch.get(key)
            if values is None or not self.vocab:
                continue
            outside = ((values < 0) | (values >= self.vocab)) & (values != none)
            if outside.any():
                row, column = outside.nonzero()[0].tolist()
                raise TrainError(
                    "train/data",
                    f"{key} of sample {chosen[row]} has {int(values[row, column])} at place {column}, "
                    f"and the model's words are 0 to {self.vocab - 1}",
                    hint="make the tokens with the model's own tokenizer; -100 in labels is no target",
                )

    def _sample(self, place: int) -> int:
        epoch, at = divmod(place, self.num)
        if not self.shuffled:
            return at
        if self._epoch[0] != epoch:
            self._epoch = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.num))
        return int(self._epoch[1][at])


def length_of(config: Config, base: Path) -> int:
    """Tokens of a sample; texts are not read for it."""
    return config.data.length if config.data.text else Tokens(config, base).length


def _files(config: Config, base: Path) -> dict[str, Path]:
    data = config.data
    if data.text:
        from fairlead.train.texts import tokenized  # the library's tokenizers, for texts alone

        folder = tokenized(config, base)
        kinds = ("input_ids", "labels", "attention_mask", *(["position_ids"] if data.pack else []))
        return {kind: folder / f"{kind}.npy" for kind in kinds}
    beside = {key: getattr(data, key) for key in ("labels", "attention_mask", "position_ids")}
    return {"input_ids": base / data.tokens, **{key: base / name for key, name in beside.items() if name}}


def _mapped(path: Path) -> np.ndarray:
    try:
        open_file(path).close()  # a pipe would be waited for
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as exc:
        raise _unfit(path, f"does not read: {exc}") from exc
    if array.ndim != 2 or array.dtype.kind not in "iu" or not array.size:
        raise _unfit(path, f"is {array.dtype} of shape {array.shape}; it must be whole numbers [samples, tokens]")
    return array


def _unfit(path: Path, what: str) -> TrainError:
    return TrainError(
        "train/data", f"{path} {what}", hint="write it with numpy.save(path, array), int64 [samples, tokens]"
    )
