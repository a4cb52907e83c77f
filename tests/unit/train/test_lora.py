"""Adapters on a streamed frozen base: to the bit as peft's in memory, and peft reads what is written."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from transformers import AutoModelForCausalLM  # noqa: E402

from fairlead.errors import SpecError, TrainError  # noqa: E402
from fairlead.train import lora, skeleton, take_apart  # noqa: E402
from fairlead.train.config import Lora, load  # noqa: E402
from fairlead.train.cuts import another_order  # noqa: E402
from fairlead.train.planning import estimate  # noqa: E402
from fairlead.train.session import Session  # noqa: E402
from support.families import config  # noqa: E402
from support.training import GROUPS, compare  # noqa: E402
from unit.train.test_session import STEPS, TEXT, losses, prepare  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


def in_memory(asked, dtype):
    """What peft makes of a model; its adapters compute in the model's dtype."""

    def adapt(net):
        settings = {"r": asked.rank, "lora_alpha": asked.alpha, "lora_dropout": asked.dropout}
        peft.inject_adapter_in_model(peft.LoraConfig(**settings, target_modules=list(asked.targets)), net)
        for name, param in net.named_parameters():
            if "lora_" in name:
                param.data = param.data.to(dtype)
            if "lora_B" in name and param.device.type != "meta":
                torch.nn.init.normal_(param, std=0.02)  # else A has no gradient in the first step
        return net

    return adapt


@pytest.mark.parametrize(
    ("family", "dtype", "targets"),
    [
        ("llama", "float32", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("qwen3", "bfloat16", ("q_proj", "v_proj", "down_proj")),
        ("gpt_neox", "bfloat16", ("query_key_value",)),
    ],
)
def test_adapters_are_trained_to_the_bit_as_in_memory(family, dtype, targets) -> None:
    asked = Lora(rank=3, alpha=5, dropout=0.2, targets=targets)
    shape = config(family)
    dtype = getattr(torch, dtype)
    net = in_memory(asked, dtype)(AutoModelForCausalLM.from_config(shape))
    frozen = tuple(name for name, param in net.named_parameters() if not param.requires_grad)
    assert 0 < len(frozen) < len(list(net.parameters()))
    wrong, results = compare(shape, dtype=dtype, frozen=frozen, clip=1e-3, adapt=in_memory(asked, dtype))
    assert not wrong
    assert min(result.clip for result in results) < 1.0, "nothing was clipped"


def test_adapters_stream_with_their_layers_in_the_run_s_dtype() -> None:
    model = lora.adapted(skeleton(config("llama"), torch.bfloat16), Lora(rank=2, targets=("q_proj",)))
    parts = take_apart(model, GROUPS)
    assert not any(lora.is_adapter(param.name) or param.wide for param in parts.blocks[0].params)
    assert sum(lora.is_adapter(param.name) for param in parts.blocks[1].params) == 2


@pytest.mark.parametrize("most", [8191, 4000, 1])
@pytest.mark.parametrize("targets", [("q_proj", "down_proj"), ("o_proj", "down_proj")], ids=str)
def test_adapters_of_layers_in_pieces_are_equal_or_known_not_to_be(most, targets) -> None:
    """A matrix with an adapter reads its input twice; keys and values read that of queries, too."""
    asked = Lora(rank=3, alpha=5, dropout=0.2, targets=targets)
    model = lora.adapted(skeleton(config("llama"), torch.bfloat16), asked)
    said = another_order(take_apart(model, GROUPS, most))
    if "q_proj" in targets and most == 1:
        assert said == "model.layers.1.self_attn.q_proj"  # nothing is trained before the first layer
        return
    assert said == ""
    net = in_memory(asked, torch.bfloat16)(AutoModelForCausalLM.from_config(config("llama")))
    frozen = tuple(name for name, param in net.named_parameters() if not param.requires_grad)
    adapt = in_memory(asked, torch.bfloat16)
    wrong, _ = compare(config("llama"), dtype=torch.bfloat16, frozen=frozen, clip=1e-3, adapt=adapt, most=most)
    assert not wrong


ADAPTERS = TEXT + "\n[lora]\nrank = 4\ntargets = ['q_proj', 'up_proj']\n"


def test_a_run_is_gone_on_with_and_peft_reads_its_adapters(tmp_path) -> None:
    alone, parts = tmp_path / "alone", tmp_path / "parts"
    for folder in (alone, parts):
        folder.mkdir()
        prepare(folder, text=ADAPTERS)
    with Session.open(load(alone / "train.toml"), alone) as run:
        list(run.train())
    with Session.open(load(parts / "train.toml"), parts) as run:
        list(run.train(2))
    with Session.open(load(parts / "train.toml"), parts, resume=True) as run:
        list(run.train())
        assert run.done == STEPS
        run.export(parts / "out")
        state = {name: kinds["p"].clone() for name, kinds in run.state()}
    assert losses(alone) == losses(parts)

    plain = AutoModelForCausalLM.from_pretrained(parts / "model", dtype=torch.float32)
    read = peft.PeftModel.from_pretrained(plain, parts / "out")
    found = dict(read.named_parameters())
    assert len(found) == len(state)
    for name, value in state.items():
        assert torch.equal(found[f"base_model.model.{name}"], value), name
    adapters = [name for name in state if lora.is_adapter(name)]
    assert len(adapters) == 4 * 2 * 2
    assert all(state[name].count_nonzero() for name in adapters), "an adapter was never trained"


def test_frozen_weights_take_a_fourth_of_the_store(tmp_path) -> None:
    prepare(tmp_path, text=ADAPTERS)
    few = estimate(load(tmp_path / "train.toml"), tmp_path)
    (tmp_path / "train.toml").write_text(TEXT)
    all_ = estimate(load(tmp_path / "train.toml"), tmp_path)
    assert few.params > all_.params
    assert few.need.total("disk") < all_.need.total("disk") / 3


@pytest.mark.parametrize("targets", [("nowhere",), ("self_attn",)])
def test_where_no_adapter_fits_the_name_is_told(tmp_path, targets) -> None:
    prepare(tmp_path, text=TEXT + f"\n[lora]\nrank = 4\ntargets = {json.dumps(targets)}\n")
    with pytest.raises(TrainError, match=targets[0]) as refused:
        estimate(load(tmp_path / "train.toml"), tmp_path)
    assert refused.value.code == "train/lora"


def test_frozen_patterns_and_adapters_exclude_each_other(tmp_path) -> None:
    prepare(tmp_path, text=ADAPTERS.replace("[model]", '[model]\nfrozen = ["*"]'))
    with pytest.raises(SpecError, match="exclude each other"):
        load(tmp_path / "train.toml")
