"""A Llama of two layers with random weights and a tokenizer that was trained on the spot: real files, made in a second.

It says nothing sensible, and that is not asked of it: engines load, batch and stream it as they do any other.
"""

from __future__ import annotations

import sys
from pathlib import Path

CONTEXT = 2048
"""Tokens."""


def make_tiny(folder: Path) -> Path:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(["a switch forwards packets and a host sends words to another host"] * 4, trainer)
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", chat_template=template)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=None,  # it goes on until it is told to stop
        pad_token_id=1,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    make_tiny(Path(sys.argv[1]))
