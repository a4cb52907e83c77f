"""Texts that share a row, each with positions of its own: which models keep them apart, and what rows must not hold.

transformers tells packed texts by positions that begin anew, in families that give positions to what makes their mask,
and only where no attention mask is given (`transformers.masking_utils`).

Must not know: files, engines.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import numpy as np

from fairlead.errors import TrainError
from fairlead.train.config import Config

IGNORED = -100
"""The label of what is no target."""


@cache
def families() -> frozenset[str]:
    """`model_type` of models that were seen to keep packed texts apart."""
    return frozenset(tomllib.loads((files("fairlead.train") / "packing.toml").read_text("utf-8"))["apart"])


def check(config: Config, model_type: str) -> None:
    """Raise TrainError where a run packs texts for a model that is not known to keep them apart."""
    data = config.data
    packs = (bool(data.text) and data.pack) or (bool(data.position_ids) and not data.attention_mask)
    if packs and model_type not in families():
        raise TrainError(
            "train/packed",
            f"models of type {model_type} are not known to keep texts apart that share a row",
            hint="pack = false: one text a row" if data.text else "a row for each text, without position_ids",
        )


def begins(positions: np.ndarray) -> np.ndarray:
    """Where another text begins in rows of positions `[rows, tokens]`: where they do not go on."""
    found = np.zeros(positions.shape, bool)
    found[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    return found


def check_mask(positions: np.ndarray, mask: np.ndarray) -> None:
    """Raise TrainError where several texts share a row beside a mask: the library takes them for one text then."""
    inside = begins(positions)[:, 1:] & (mask[:, 1:] == 1) & (mask[:, :-1] == 1)
    if inside.any():
        raise TrainError(
            "train/packed",
            "position_ids begin anew among real tokens, and with attention_mask each row is taken for one text",
            hint="leave attention_mask out: give padding positions of its own, and -100 in labels",
        )
