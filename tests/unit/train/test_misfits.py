"""What does not fit together, told before or instead of training with it: checkpoints, configurations, tokens."""

from __future__ import annotations

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from fairlead.errors import TrainError  # noqa: E402
from fairlead.train.config import load  # noqa: E402
from fairlead.train.session import Session  # noqa: E402
from support.families import config as tiny  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

LABELS = 'labels = "labels.npy"'


class Run:
    """A folder with a model, tokens and a configuration, to be spoilt."""

    def __init__(self, folder, family="llama", **more):
        self.folder = folder
        torch.manual_seed(5)
        net = AutoModelForCausalLM.from_config(tiny(family, **more), dtype=torch.float32)
        net.save_pretrained(folder / "model")
        self.tokens = np.random.default_rng(1).integers(3, 90, (8, 12))
        np.save(folder / "tokens.npy", self.tokens)

    @property
    def weights(self):
        return self.folder / "model" / "model.safetensors"

    def spoil(self, change):
        """Weights as `change` leaves them."""
        found = load_file(self.weights)
        change(found)
        save_file({key: value.contiguous() for key, value in found.items()}, self.weights, metadata={"format": "pt"})

    def configure(self, **changes):
        """Other values in config.json."""
        path = self.folder / "model" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def open(self, *, model="", data="", memory=""):
        text = f"""
[model]
path = "model"
compute = "fp32"
{model}
[data]
tokens = "tokens.npy"
order = "file"
{data}
[run]
steps = 2
rows = 2
[memory]
{memory}
"""
        (self.folder / "train.toml").write_text(text)
        return Session.open(load(self.folder / "train.toml"), self.folder)

    def refusal(self, **parts) -> TrainError:
        """How it is refused, before a step or in the first one."""
        with pytest.raises(TrainError) as found, self.open(**parts) as session:
            list(session.train())
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        return found.value


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


# --- checkpoints -----------------------------------------------------------------------------------------------------


def quantised(found) -> None:
    """As fp8 checkpoints are: numbers, and scales beside them."""
    for key in [key for key in found if "q_proj" in key]:
        found[key] = found[key].to(torch.float8_e4m3fn)
        found[f"{key}_scale_inv"] = torch.ones(1, 1)


def test_a_quantised_checkpoint_is_refused_by_its_configuration(run) -> None:
    run.spoil(quantised)
    run.configure(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    found = run.refusal()
    assert "is quantised (fp8)" in str(found)
    assert "dequantize" in found.hint
    with run.open(model='init = "random"') as session:
        session.export(run.folder / "out")
    assert "quantization_config" not in json.loads((run.folder / "out" / "config.json").read_text())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_quantised_numbers_are_refused_without_it_too(run, dtype) -> None:
    run.spoil(lambda found: found.update({key: value.to(dtype) for key, value in found.items() if "q_proj" in key}))
    assert "quantised numbers are no weights" in str(run.refusal())


def test_more_of_a_module_than_the_model_has_is_refused_and_other_leftovers_are_not(run) -> None:
    run.spoil(lambda found: found.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    with run.open():
        pass
    shutil.rmtree(run.folder / "store")
    run.spoil(lambda found: found.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}))
    assert "holds model.layers.0.self_attn.q_proj.bias, for which LlamaForCausalLM has no place" in str(run.refusal())


def test_two_weights_where_the_configuration_ties_them_are_refused(run) -> None:
    run.configure(tie_word_embeddings=True)
    assert "config.json ties them" in str(run.refusal())
    run.spoil(lambda found: found.update({"lm_head.weight": found["model.embed_tokens.weight"].clone()}))
    with run.open():
        pass


def test_a_single_file_counts_before_an_index(run) -> None:
    first = load_file(run.weights)["model.norm.weight"]
    (run.folder / "model" / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"model.norm.weight": "another.safetensors"}})
    )
    with run.open() as session:
        assert torch.equal(dict(session.state())["model.norm.weight"]["p"], first)


# --- configurations --------------------------------------------------------------------------------------------------


def test_a_model_of_more_than_text_is_refused_by_name(run) -> None:
    run.configure(
        model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"], text_config={}, vision_config={}
    )
    found = run.refusal()
    assert "is a gemma3, of text and more" in str(found)


def test_a_pattern_that_freezes_nothing_is_told(tmp_path) -> None:
    run = Run(tmp_path, tie_word_embeddings=True)
    assert "`embed_tokens` of model.frozen names no parameter" in str(run.refusal(model='frozen = ["embed_tokens"]'))
    tied = run.refusal(model='frozen = ["lm_head.*"]')
    assert "lm_head.weight is model.embed_tokens.weight" in str(tied)
    assert "nothing is left to train" in str(run.refusal(model='frozen = ["*"]'))


def test_a_head_that_reads_more_than_the_last_state_has_no_pieces(tmp_path) -> None:
    run = Run(tmp_path, "mixtral")
    found = run.refusal(memory="head_tokens = 4")
    assert "also reads router_logits" in str(found)
    assert "head_tokens = 0" in found.hint


def test_norms_of_gpt2_do_not_decay(tmp_path) -> None:
    run = Run(tmp_path, "gpt2")
    with run.open() as session:
        decays = {param.name: param.weight_decay for block in session.parts.blocks for param in block.params}
    assert {name for name, decay in decays.items() if ".ln_" in name and decay} == set()
    assert decays["transformer.h.0.attn.c_attn.weight"] > 0


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [96, -1, -100])
def test_a_token_that_is_no_word_of_the_model_is_named(run, value) -> None:
    run.tokens[1, 3] = value
    np.save(run.folder / "tokens.npy", run.tokens)
    found = run.refusal()
    assert f"input_ids of sample 1 has {value} at place 3" in str(found)


def test_a_target_that_is_no_word_is_named_and_what_is_not_to_be_learned_is_none(run) -> None:
    labels = run.tokens.copy()
    labels[0, 5:] = -100
    labels[1, 7] = 500
    np.save(run.folder / "labels.npy", labels)
    assert "labels of sample 1 has 500 at place 7" in str(run.refusal(data=LABELS))


def test_samples_longer_than_the_table_of_positions_are_refused_before_anything_is_written(tmp_path) -> None:
    run = Run(tmp_path, "gpt2", n_positions=8)
    assert "samples have 12 tokens, and GPT2LMHeadModel has 8 positions" in str(run.refusal())
    assert not (tmp_path / "store").exists()


def test_what_a_packed_text_begins_with_is_predicted_by_no_other_text(run) -> None:
    np.save(run.folder / "positions.npy", np.tile(np.concatenate([np.arange(5), np.arange(7)]), (8, 1)))
    with run.open(data='position_ids = "positions.npy"') as session:
        (batch,) = session.tokens.step(0)
    assert (batch["labels"] == -100).nonzero()[:, 1].tolist() == [5, 5]
