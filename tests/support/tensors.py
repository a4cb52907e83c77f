"""A small model as files of tensors, written by the package safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path


def write_model(folder: Path, count: int, changed: Iterable[int] = (), **said: str) -> None:
    """Two shards of `count` tensors of 160 kB and more; those of `changed` have other bytes."""
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(5)
    tensors = {f"layers.{i}.weight": rng.integers(0, 255, 160_000 + 97 * i, dtype="uint8") for i in range(count)}
    for i in changed:
        tensors[f"layers.{i}.weight"] = tensors[f"layers.{i}.weight"][::-1].copy()
    names = list(tensors)
    folder.mkdir(exist_ok=True)
    for shard, part in enumerate((names[: count // 2], names[count // 2 :])):
        save_file({n: tensors[n] for n in part}, folder / f"model-{shard}.safetensors", metadata=said or None)
    (folder / "config.json").write_text(json.dumps(said))
