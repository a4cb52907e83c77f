# ruff: noqa: INP001
"""A model of three million parameters, a text as tokens and a configuration, made in a folder: nothing is downloaded.

python examples/train/prepare.py /tmp/tiny [TEXT]
fairlead train run /tmp/tiny/train.toml
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

try:
    import numpy as np
    from transformers import LlamaConfig
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not installed here; next: pip install -e '.[train]' in the project's folder")

HERE = Path(__file__).parent
LENGTH = 128


def main() -> None:
    """Write the folder."""
    folder = Path(sys.argv[1])
    text = Path(sys.argv[2]) if len(sys.argv) > 2 else HERE.parents[1] / "LICENSE"
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=LENGTH,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.save_pretrained(folder / "model")
    tokens = np.frombuffer(text.read_bytes(), np.uint8).astype(np.int64)
    np.save(folder / "tokens.npy", tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH))
    shutil.copy(HERE / "train.toml", folder / "train.toml")
    print(f"next     fairlead train run {folder / 'train.toml'}")  # noqa: T201


if __name__ == "__main__":
    main()
