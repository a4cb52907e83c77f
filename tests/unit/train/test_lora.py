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
from support.train_ranks import on_ranks, train_session  # noqa: E402
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


ENDS = {
    "apart": ("llama", ("q_proj", "down_proj"), ["embedding", "head"]),
    "tied": ("gemma2", ("q_proj", "down_proj"), ["both"]),
    "tied, at Conv1D": ("gpt2", ("c_attn",), ["both"]),
    "an adapter at the head": ("llama", ("q_proj", "lm_head"), ["embedding", "head"]),
    "an adapter at the embedding": ("llama", ("q_proj", "embed_tokens"), ["head"]),
    "tied, an adapter at the head": ("gemma2", ("q_proj", "lm_head"), []),
    "tied, an adapter at the embedding": ("gemma2", ("q_proj", "embed_tokens"), []),
}
"""Where adapters are, and what of embedding and head streams then: an adapter of one weight for both is of one use."""


@pytest.mark.parametrize("kept", ["memory", "disk"])
@pytest.mark.parametrize("way", ENDS)
def test_embedding_and_head_stream_beside_adapters(way, kept, tmp_path) -> None:
    family, targets, roles = ENDS[way]
    asked, shape = Lora(rank=3, alpha=5, dropout=0.2, targets=targets), config(family)
    model = lora.adapted(skeleton(shape, torch.bfloat16), asked)
    assert [block.role for block in take_apart(model, GROUPS, ends=True).ends] == roles
    frozen = tuple(name for name, param in model.named_parameters() if not param.requires_grad)
    more = {"store": tmp_path / "store"} if kept == "disk" else {}
    adapt = in_memory(asked, torch.bfloat16)
    wrong, results = compare(shape, dtype=torch.bfloat16, frozen=frozen, clip=1e-3, adapt=adapt, ends=True, **more)
    assert not wrong
    assert min(result.clip for result in results) < 1.0, "nothing was clipped"


ADAPTERS = TEXT + "\n[lora]\nrank = 4\ntargets = ['q_proj', 'up_proj']\n"


@pytest.mark.parametrize("targets", [("q_proj", "up_proj"), ("q_proj", "embed_tokens", "lm_head")], ids=str)
def test_a_run_is_gone_on_with_and_peft_reads_its_adapters(targets, tmp_path) -> None:
    alone, parts = tmp_path / "alone", tmp_path / "parts"
    for folder in (alone, parts):
        folder.mkdir()
        prepare(folder, text=ADAPTERS.replace("['q_proj', 'up_proj']", str(list(targets))))
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
    assert len(adapters) == (4 * 2 * 2 if "up_proj" in targets else 4 * 2 + 2 * 2)
    assert all(state[name].count_nonzero() for name in adapters), "an adapter was never trained"


@pytest.mark.parametrize("keep", ["memory", "disk"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_run_whose_ends_stream_has_the_losses_and_the_adapters_of_one_whose_ends_stay(family, keep, tmp_path) -> None:
    written = {}
    for ends in ("stay", "stream"):
        folder = tmp_path / ends
        folder.mkdir()
        text = ADAPTERS.replace("[run]", f'[run]\nkeep = "{keep}"') + f'[memory]\nends = "{ends}"\n'
        prepare(folder, family, text)
        with Session.open(load(folder / "train.toml"), folder) as run:
            assert bool(run.engine.parts.ends) is (ends == "stream")
            list(run.train(2))
        with Session.open(load(folder / "train.toml"), folder, resume=True) as run:
            list(run.train())
            (file,) = run.export(folder / "out")
        written[ends] = file.read_bytes(), losses(folder)
    assert len(written["stay"][1]) == STEPS
    assert written["stream"] == written["stay"]


def test_two_ranks_whose_ends_stream_begin_with_the_adapters_of_one_host(tmp_path) -> None:
    text = ADAPTERS.replace("[model]", '[model]\ninit = "random"').replace("[run]", '[run]\nkeep = "memory"')
    prepare(tmp_path, text=text + '[memory]\nends = "stay"\n')
    with Session.open(load(tmp_path / "train.toml"), tmp_path) as run:
        list(run.train())
        expected = {name: {kind: t.clone() for kind, t in kinds.items()} for name, kinds in run.state()}
    alone = losses(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    text = text.replace("[run]", '[run]\nstore = "ranks"') + '[memory]\nends = "stream"\n'
    (tmp_path / "train.toml").write_text(text)
    assert on_ranks(2, train_session, tmp_path, steps=None, resume=False) == [0, 0]
    assert losses(tmp_path) == alone
    with Session.open(load(tmp_path / "train.toml"), tmp_path, resume=True) as run:
        assert run.engine.parts.ends
        found = dict(run.state())
        assert all(torch.equal(t, found[name][kind]) for name, kinds in expected.items() for kind, t in kinds.items())


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
