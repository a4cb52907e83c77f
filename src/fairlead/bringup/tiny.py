"""A model of some hundred thousand parameters with random weights, and what it is trained with: made in seconds.

It says nothing sensible, and that is not asked of it: engines load, batch and stream it as they do any other.
"""

from __future__ import annotations

import json
from pathlib import Path

_ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
CONTEXT = 2048
"""Tokens."""
_WORDS = "a switch forwards packets and a host sends words to another host"
_TRAIN = """\
[model]
path = "{model}"
[data]
text = "{text}"
length = 64
[memory]
device = "cpu"
[run]
steps = 1000
accumulation = {ranks}
keep = "memory"
save_every = 1
store = "{store}"
metrics = "{metrics}"
"""


def make_tiny(folder: Path, *, layers: int = 2, width: int = 128) -> Path:
    """A Llama with its tokenizer, in Hugging Face's files; `width` is a multiple of 64. Needs transformers."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=list(_ENDS.values()), initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator([_WORDS] * 4, trainer)
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=template, **_ENDS)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=None,  # it goes on until it is told to stop
        pad_token_id=1,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


def make_training(folder: Path, model: Path, ranks: int) -> Path:
    """A configuration of `fairlead train` on as many CPUs for it, with a text; the store goes beside."""
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"{_WORDS} {i}. " * 8}) + "\n" for i in range(64)))
    config = folder / "train.toml"
    places = {"model": model, "text": text, "store": folder / "store", "metrics": folder / "metrics.jsonl"}
    config.write_text(_TRAIN.format(**places, ranks=ranks))
    return config
