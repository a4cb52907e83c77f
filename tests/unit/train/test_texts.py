"""Texts become tokens: what is learned is what the library's own masks say, and packing changes no sample."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from fairlead.errors import SpecError, TrainError  # noqa: E402
from fairlead.train.config import load  # noqa: E402
from fairlead.train.planning import estimate  # noqa: E402
from fairlead.train.session import Session  # noqa: E402
from fairlead.train.texts import tokenized  # noqa: E402
from support.families import config as tiny  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

# ChatML (github.com/openai/openai-python/blob/v0.28.1/chatml.md), with the library's own mark for what is generated:
# huggingface.co/docs/transformers/chat_templating_writing
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>\n' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALK = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "Is the licence permissive?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Who grants it?"},
    {"role": "assistant", "content": "Contributors."},
]
TEXT = """
[model]
path = "model"
init = "random"
compute = "fp32"

[data]
text = "talks.jsonl"
order = "file"
length = 96

[run]
steps = 1
rows = 4
"""


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level BPE of the project's licence."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    inner.train_from_iterator(Path("LICENSE").read_text().splitlines(), trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>", chat_template=CHATML)


def prepare(folder, tokenizer, lines, text=TEXT):
    shape = tiny("llama")
    shape.vocab_size, shape.attention_dropout = 400, 0.0
    shape.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "talks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "train.toml").write_text(text)
    return load(folder / "train.toml")


def arrays(folder, config):
    place = tokenized(config, folder)
    return {path.stem: np.load(path, mmap_mode="r") for path in place.glob("*.npy")}


def test_what_an_assistant_says_is_what_the_librarys_own_mask_says(tokenizer, tmp_path) -> None:
    found = arrays(tmp_path, prepare(tmp_path, tokenizer, [{"messages": TALK}], TEXT.replace("96", "160")))
    own = tokenizer.apply_chat_template(TALK, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    num = len(own["input_ids"])
    assert found["input_ids"][0, :num].tolist() == own["input_ids"]
    assert [int(label != -100) for label in found["labels"][0, :num]] == own["assistant_masks"]
    assert sum(own["assistant_masks"]) > 4


def test_prompts_can_be_learned_too_and_completions_end(tokenizer, tmp_path) -> None:
    lines = [{"prompt": "Warranty:", "completion": " none"}]
    masked = arrays(tmp_path, prepare(tmp_path, tokenizer, lines))
    learned = arrays(tmp_path, prepare(tmp_path, tokenizer, lines, TEXT.replace("[run]", 'prompts = "learned"\n[run]')))
    targets = [label for label in masked["labels"][0].tolist() if label != -100]
    assert tokenizer.decode(targets) == " none<|endoftext|>"
    said = [label for label in learned["labels"][0].tolist() if label != -100]
    assert tokenizer.decode(said) == tokenizer.decode(learned["input_ids"][0, 1 : len(said) + 1])
    assert len(said) > len(targets)


def test_texts_fill_rows_without_a_gap_and_come_back(tokenizer, tmp_path) -> None:
    lines = [{"text": line} for line in Path("LICENSE").read_text().splitlines() if line][:40]
    config = prepare(tmp_path, tokenizer, lines)
    found = arrays(tmp_path, config)
    real = found["attention_mask"].astype(bool)
    assert real[:-1].all()
    whole = "<|endoftext|>".join(line["text"] for line in lines) + "<|endoftext|>"
    assert tokenizer.decode(found["input_ids"][real].tolist()) == whole
    starts = found["position_ids"] == 0
    assert (found["labels"][starts] == -100).all()
    assert tokenized(config, tmp_path) == tokenized(config, tmp_path)
    assert len(list((tmp_path / "store.tokens").iterdir())) == 1


def test_packed_samples_have_the_losses_of_samples_alone(tokenizer, tmp_path) -> None:
    lines = [{"prompt": f"Clause {k}:", "completion": f" grants {k} rights"} for k in range(4)]
    losses, tokens = [], []
    for pack in ("true", "false"):
        text = TEXT.replace("[run]", f"pack = {pack}\n[run]\nstore = 'store-{pack}'\nmetrics = '{pack}.jsonl'")
        config = prepare(tmp_path, tokenizer, lines, text if pack == "false" else text.replace("rows = 4", "rows = 1"))
        with Session.open(config, tmp_path) as run:
            done = next(run.train())
            losses.append(done.result.loss)
            tokens.append(done.tokens)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert tokens[0] == tokens[1] < 96


def test_an_estimate_reads_no_texts(tokenizer, tmp_path) -> None:
    config = prepare(tmp_path, tokenizer, [{"no": "sample"}])
    assert estimate(config, tmp_path).tokens == 4 * 96
    assert not (tmp_path / "store.tokens").exists()


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b'{"text": "one"}\n{"txt": "two"}\n', "line 2: has neither `text`"),
        (b'{"text": 5}\n', r"line 1: Expected `str \| null`, got `int`"),
        (b"\xff\xfe\n", "line 1: "),
        (b"", "holds no sample"),
        (b'{"prompt": "only", "completion": null}\n', "line 1: has neither"),
    ],
)
def test_a_line_that_is_no_sample_is_named(raw, what, tokenizer, tmp_path) -> None:
    config = prepare(tmp_path, tokenizer, [])
    (tmp_path / "talks.jsonl").write_bytes(raw)
    with pytest.raises(TrainError, match=what) as found:
        tokenized(config, tmp_path)
    assert found.value.code == "train/text"
    assert [path.suffix for path in (tmp_path / "store.tokens").iterdir()] == [".coming"]


def test_no_tokenizer_and_two_sources_are_said(tokenizer, tmp_path) -> None:
    config = prepare(tmp_path, tokenizer, [{"text": "one"}])
    for path in (tmp_path / "model").glob("token*"):
        path.unlink()
    with pytest.raises(TrainError, match="holds no tokenizer"):
        tokenized(config, tmp_path)
    (tmp_path / "train.toml").write_text(TEXT.replace("[run]", 'tokens = "tokens.npy"\n[run]'))
    with pytest.raises(SpecError, match="exclude each other"):
        load(tmp_path / "train.toml")
