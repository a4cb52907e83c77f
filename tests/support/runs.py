"""A small training run in a folder: a model directory, tokens, a configuration that tests change key by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from fairlead.train.config import load
from fairlead.train.session import Session
from support.families import config as tiny

KEYS: dict[str, dict[str, Any]] = {
    "model": {"path": "model", "compute": "fp32"},
    "data": {"tokens": "tokens.npy", "order": "file"},
    "run": {"steps": 4, "rows": 2, "accumulation": 2, "seed": 7},
    "optimizer": {"lr": 1e-3},
    "memory": {"device": "cpu"},
}
ROWS, LENGTH, WORDS = 16, 12, 90


def prepare(folder: Path, name: str = "train.toml", **changes: Any) -> Path:
    """The configuration; `run_keep="memory"` changes `[run] keep`, None leaves a key out."""
    if not (folder / "model").exists():
        torch.manual_seed(5)
        AutoModelForCausalLM.from_config(tiny("llama"), dtype=torch.float32).save_pretrained(folder / "model")
    if not (folder / "tokens.npy").exists():
        write(folder, "tokens", seed=1)
    keys = {table: dict(values) for table, values in KEYS.items()}
    for key, value in changes.items():
        table, _, word = key.partition("_")
        keys.setdefault(table, {})[word] = value
    lines = []
    for table, values in keys.items():
        lines.append(f"[{table}]")
        lines += [f"{word} = {json.dumps(value)}" for word, value in values.items() if value is not None]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def write(folder: Path, name: str, seed: int = 0, **fixed: Any) -> np.ndarray:
    """An array of the shape of the tokens, random or filled with one number."""
    shape = (ROWS, LENGTH)
    array = np.random.default_rng(seed).integers(3, WORDS, shape, np.int64)
    if "fill" in fixed:
        array = np.full(shape, fixed["fill"], np.int64)
    np.save(folder / f"{name}.npy", array)
    return array


def opened(toml: Path, *, resume: bool = False) -> Session:
    """Its session."""
    return Session.open(load(toml), toml.parent, resume=resume)


def trained(toml: Path, steps: int | None = None, *, resume: bool = False) -> tuple[list[float], dict[str, Any]]:
    """Losses, and the state afterwards."""
    with opened(toml, resume=resume) as run:
        losses = [progress.result.loss for progress in run.train(steps)]
        return losses, {n: {k: t.clone() for k, t in kinds.items()} for n, kinds in run.state()}


def steps_told(folder: Path, name: str = "metrics.jsonl") -> list[int]:
    """The steps of a metrics file, each line of which must be JSON as the standard has it."""

    def no(word: str) -> float:
        raise ValueError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=no)["step"] for line in (folder / name).read_text().splitlines()]
