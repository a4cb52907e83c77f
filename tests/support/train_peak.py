"""Trains a model in a process of its own; prints what the plan said of host memory, and what was the most it took."""

from __future__ import annotations

import sys
from pathlib import Path

SHAPES = {
    "llama": ("llama", (8192, 768, 2048, 6), 4, 256, 1, 0, "auto"),
    "gemma": ("gemma", (16384, 512, 2048, 4), 2, 256, 2, 0, "auto"),
    "qwen3": ("qwen3", (32768, 512, 1536, 5), 2, 512, 1, 128, "auto"),
    "phi3": ("phi3", (8192, 640, 2560, 6), 4, 256, 2, 0, "auto"),
    "olmo2": ("olmo2", (12288, 640, 1792, 5), 2, 384, 1, 0, "auto"),
    "llama, deep": ("llama", (1024, 512, 2048, 32), 1, 128, 2, 0, "auto"),
    "llama, ends": ("llama", (131072, 384, 1024, 4), 1, 128, 2, 0, "stream"),
    "gemma2, ends": ("gemma2", (131072, 384, 1024, 4), 1, 128, 2, 0, "stream"),
    "qwen3, ends, pieces": ("qwen3", (131072, 384, 1024, 4), 2, 256, 1, 64, "stream"),
}
"""Family; vocabulary, hidden and inner width, layers; rows, length, accumulation, head_tokens, ends."""

TEXT = """
[model]
path = "model"
init = "random"
compute = "fp32"
[data]
tokens = "tokens.npy"
[run]
steps = 2
rows = {rows}
accumulation = {accumulation}
[memory]
host_gib = 4
head_tokens = {head}
ends = "{ends}"
"""


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def train(folder: Path, words: tuple[int, int, int, int, str]) -> tuple[int, int]:
    import numpy as np

    from fairlead.train.config import load
    from fairlead.train.planning import estimate
    from fairlead.train.session import Session

    rows, length, accumulation, head, ends = words
    np.save(folder / "tokens.npy", np.random.default_rng(0).integers(3, 60, (64, length)))
    text = TEXT.format(rows=rows, accumulation=accumulation, head=head, ends=ends)
    (folder / "train.toml").write_text(text)
    config = load(folder / "train.toml")
    said = estimate(config, folder).need.total("host")
    Path("/proc/self/clear_refs").write_text("5")  # begin the peak anew
    before = status("VmRSS")
    with Session.open(config, folder) as run:
        list(run.train())
    return said, status("VmHWM") - before


def main() -> None:
    import torch

    from support.families import FAMILIES, config

    torch.set_num_threads(1)
    family, larger, *words = SHAPES[sys.argv[1]]
    for size in ("small", "large"):  # the first run loads what libraries load when they are first used
        folder = Path(sys.argv[2]) / size
        shape = config(family)
        if size == "large":
            _, values = FAMILIES[family]
            names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
            heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": larger[1] // 8}
            more = {**dict(zip(names, larger, strict=True)), **heads, "max_position_embeddings": 1024}
            shape = type(shape)(**{**values, **more})
        shape.save_pretrained(folder / "model")
        said, took = train(folder, tuple(words) if size == "large" else (1, 32, 1, 0, words[-1]))
    print(said, took)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
