"""Models for tests of bundles, made by the packages that real ones are made with, and keys by openssl."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

CARD = "---\nlicense: apache-2.0\nlanguage:\n- en\n---\n# A model\n"


def model(folder: Path, *, shards: int = 2, values: int = 5_000) -> Path:
    """A model of so many shards, with index, settings, tokenizer and card."""
    np = pytest.importorskip("numpy", reason="needs numpy: extra `fabric`")
    save = pytest.importorskip("safetensors.numpy", reason="needs safetensors: extra `train`").save_file
    folder.mkdir(parents=True)
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    for i, name in enumerate(names):
        tensor = np.random.default_rng(i).standard_normal(values + i).astype(np.float32)
        save({f"layer.{i}": tensor}, folder / name, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {f"layer.{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "extra").mkdir()
    (folder / "extra" / "notes é.txt").write_text("x" * 1000)
    (folder / "README.md").write_text(CARD)
    return folder


def keys(folder: Path, name: str = "bundle") -> tuple[Path, Path]:
    """(private, public) key in PEM, made by openssl."""
    key, pub = folder / f"{name}.key", folder / f"{name}.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", pub], check=True, capture_output=True)
    key.chmod(0o600)
    return key, pub
