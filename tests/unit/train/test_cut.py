"""Layers cut in their modules give the bits of plain training, need less, and go on after a kill."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from fairlead.errors import TrainError  # noqa: E402
from fairlead.train import (  # noqa: E402
    Session,
    Settings,
    estimate,
    load,
    random_values,
    skeleton,
    take_apart,
)
from fairlead.train.activations import play  # noqa: E402
from fairlead.train.cuts import another_order  # noqa: E402
from fairlead.train.plan import need  # noqa: E402
from fairlead.train.schedule import Do, hazards, plan  # noqa: E402
from support.families import config  # noqa: E402
from support.train_ranks import on_ranks, train_session  # noqa: E402
from support.training import CPU, GROUPS, compare  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


def apart(family, most):
    return take_apart(skeleton(config(family), torch.float32), GROUPS, most)


def layer_size(family):
    return max(block.numel for block in apart(family, 0).blocks[1:])


def widest(parts):
    return max(block.numel for block in parts.blocks[1:])


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("deep", [False, True], ids=["attention and mlp", "each matrix"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "gpt2"])
def test_equal_to_the_bit(family, deep, accumulation) -> None:
    most = 1 if deep else layer_size(family) - 1
    parts = apart(family, most)
    assert len(parts.cut) == len(parts.model.get_submodule(parts.layers))
    wrong, _ = compare(config(family), accumulation=accumulation, most=most, slots=2)
    assert wrong == []


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("family", ["cohere", "olmo2", "gpt_neox"])
def test_what_several_pieces_or_the_residual_read_is_cut_in_matrices(family, accumulation) -> None:
    """Gradients of one input are added in one order."""
    wrong, _ = compare(config(family), accumulation=accumulation, most=1, slots=2)
    assert wrong == []


@pytest.mark.parametrize("way", [{"dtype": torch.bfloat16}, {"clip": None}, {"on_device": frozenset({0, 2})}])
def test_other_ways_of_working(way) -> None:
    wrong, _ = compare(config("llama"), most=1, **way)
    assert wrong == []


@pytest.mark.parametrize("family", ["lfm2", "qwen3_next"])
def test_short_convolutions_stay_on_the_device(family) -> None:
    """A kernel takes their weights without calling them."""
    parts = apart(family, 1)
    convolutions = [
        name for name, _ in parts.model.named_parameters() if ".conv" in name and name.endswith("1d.weight")
    ]
    convolutions += [name for name, param in parts.model.named_parameters() if name.endswith("conv.conv.weight")]
    assert convolutions
    assert {param.name for param in parts.blocks[0].params} >= set(convolutions)


def test_equal_beside_a_short_convolution() -> None:
    wrong, _ = compare(config("lfm2"), most=1, slots=2)
    assert wrong == []


def test_first_weights_do_not_depend_on_the_cut() -> None:
    whole, cut = (dict(random_values(apart("llama", most), 5, CPU)) for most in (0, 1))
    assert whole.keys() == cut.keys()
    assert all(torch.equal(value, cut[name]) for name, value in whole.items())


def test_pieces_are_smaller_and_stacked_experts_stay_whole() -> None:
    size = layer_size("llama")
    assert widest(apart("llama", size)) == size
    assert widest(apart("llama", 1)) < widest(apart("llama", size - 1)) < size
    names = {block.name for block in apart("mixtral", 1).blocks}
    assert "model.layers.0.mlp.experts" in names
    assert not any("experts." in name for name in names)


def test_random_schedules_have_no_hazard_and_lose_one_when_an_operation_is_lost() -> None:
    draw = random.Random(3)
    for _ in range(100):
        schedule = plan(draw.randrange(1, 30), draw.randrange(1, 9))
        ops = list(schedule.ops())
        assert hazards(schedule, ops) == []
        lost = draw.choice([op for op in ops if op.do in (Do.COPY, Do.FORWARD, Do.BACKWARD, Do.KEEP)])
        ops.remove(lost)
        assert hazards(schedule, ops)


@pytest.mark.parametrize(
    ("family", "most", "first"),
    [
        ("llama", 8191, ""),
        ("cohere", 7935, "model.layers.0.self_attn"),
        ("cohere", 1, ""),
        ("olmo2", 8703, "model.layers.0.self_attn"),
        ("olmo2", 1, ""),
        ("mixtral", 1, ""),
    ],
)
def test_pieces_that_would_add_in_another_order_are_known_before(family, most, first) -> None:
    assert another_order(apart(family, most)) == first


TEXT = """
[model]
path = "model"
compute = "fp32"
[data]
tokens = "tokens.npy"
[run]
steps = 4
rows = 2
accumulation = 2
store = "STORE"
metrics = "STORE.jsonl"
[optimizer]
lr = 1e-3
clip = 0.05
[memory]
host_gib = GIB
"""


def written(folder, store, gib):
    text = TEXT.replace("STORE", store).replace("GIB", repr(gib))
    (folder / f"{store}.toml").write_text(text)
    return load(folder / f"{store}.toml")


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(5)
    shape = config("llama", hidden_size=256, intermediate_size=1024, num_hidden_layers=2)
    AutoModelForCausalLM.from_config(shape, dtype=torch.float32).save_pretrained(tmp_path / "model")
    np.save(tmp_path / "tokens.npy", np.random.default_rng(1).integers(3, 90, (16, 12), np.int64))
    return tmp_path


def between(folder, part=0.5):
    """A budget that whole layers exceed in one slot, and pieces do not."""
    whole = estimate(written(folder, "ample", 16.0), folder)
    none = estimate(written(folder, "none", 0.001), folder)
    assert whole.cut == ""
    assert none.shortfall is not None
    assert "more host memory" in none.shortfall.message
    assert "layers stream in pieces" in none.cut
    least = none.need.total("host")
    for gib in np.linspace(least / 2**30 * 1.0001, whole.need.total("host") / 2**30, 40):
        found = estimate(written(folder, "tight", float(gib)), folder)
        if found.most:
            assert found.fits
            return float(gib)
    raise AssertionError("no budget needs a cut")


def test_a_run_that_the_budget_cuts_is_begun_stopped_gone_on_with_and_exported_with_the_same_bits(model) -> None:
    gib = between(model)
    ample, tight = written(model, "ample", 16.0), written(model, "tight", gib)
    with Session.open(ample, model) as run:
        plain = [step.result for step in run.train()]
        expected = {name: {kind: t.clone() for kind, t in kinds.items()} for name, kinds in run.state()}
    with Session.open(tight, model) as run:
        assert run.engine.parts.cut
        first = [step.result for step in run.train(2)]
    with Session.open(ample_like(model, gib), model, resume=True) as run:  # a larger budget later: pieces stay
        assert run.engine.parts.cut
        assert run.done == 2
        rest = [step.result for step in run.train()]
        found = {name: {kind: t.clone() for kind, t in kinds.items()} for name, kinds in run.state()}
        run.export(model / "out")
    assert [(r.loss, r.grad_norm) for r in first + rest] == [(r.loss, r.grad_norm) for r in plain]
    assert found.keys() == expected.keys()
    assert all(torch.equal(t, found[name][kind]) for name, kinds in expected.items() for kind, t in kinds.items())
    net = AutoModelForCausalLM.from_pretrained(model / "out", dtype=torch.float32)
    assert all(torch.equal(param, found[name]["p"]) for name, param in net.named_parameters())


def test_ranks_go_on_with_the_pieces_of_one_host(model, tmp_path) -> None:
    gib = between(model)
    ample, tight = written(model, "ample", 16.0), written(model, "tight", gib)
    with Session.open(ample, model) as run:
        plain = [step.result.loss for step in run.train()]
    with Session.open(tight, model) as run:
        assert run.engine.parts.cut
        found = [step.result.loss for step in run.train(1)]
    text = (model / "tight.toml").read_text().replace(f"host_gib = {gib!r}", "host_gib = 16.0")
    (model / "train.toml").write_text(text)
    assert on_ranks(2, train_session, model, steps=2, resume=True) == [0, 0]
    with Session.open(load(model / "train.toml"), model, resume=True) as run:
        assert run.engine.parts.cut
        assert run.done == 3
        found += [told["loss"] for told in map(json.loads, run.metrics.read_text().splitlines())][1:]
        found += [step.result.loss for step in run.train()]
    assert found == plain


def ample_like(folder, gib):
    text = (folder / "tight.toml").read_text().replace(f"host_gib = {gib!r}", "host_gib = 16.0")
    (folder / "tight.toml").write_text(text)
    return load(folder / "tight.toml")


def test_what_pieces_do_not_fit_either_is_refused_with_the_shortfall(model) -> None:
    with pytest.raises(TrainError, match=r"needs .*iB more host memory"):
        Session.open(written(model, "none", 0.001), model)


def test_stacked_experts_as_the_largest_leave_layers_whole(tmp_path) -> None:
    config("mixtral", intermediate_size=512).save_pretrained(tmp_path / "model")
    np.save(tmp_path / "tokens.npy", np.random.default_rng(1).integers(3, 90, (16, 12), np.int64))
    names = [block.name for block in apart("mixtral", 1).blocks if "experts" in block.name]
    said = estimate(written(tmp_path, "none", 0.001), tmp_path)
    assert names[0] in said.cut
    assert said.shortfall is not None


def test_a_layer_of_175b_shape_within_35_gib() -> None:
    """Planned, on a GPU, 2 x 2,048 tokens; the MLP with a gate."""
    shape = config(
        "llama",
        hidden_size=12288,
        intermediate_size=49152,
        num_attention_heads=96,
        num_key_value_heads=96,
        head_dim=128,
        num_hidden_layers=1,
        vocab_size=50272,
    )
    whole = take_apart(skeleton(shape, torch.bfloat16), GROUPS)
    settings = Settings(torch.device("cuda"), torch.bfloat16, accumulation=2, head_tokens=2048)

    def gib(most):
        parts = take_apart(whole.model, GROUPS, most)
        found = play(parts, torch.bfloat16, 1, 2048, 2048, 2, device="cuda")
        return need(parts.blocks, settings, found, tokens=4096, active=1).total("device") / 2**30

    layer, widest_matrix = whole.blocks[1].numel, 12288 * 49152
    assert gib(0) == pytest.approx(35.05, abs=0.1)
    assert gib(layer - 1) < 32
    assert gib(widest_matrix) < 20


PEAK = """
import json, sys, torch
from pathlib import Path
from fairlead.train import Engine, ParamGroup, Settings, random_values, skeleton, take_apart
from transformers import LlamaConfig
from fairlead.train.memory import give_back_at_once
give_back_at_once()
torch.set_num_threads(1)
shape = LlamaConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=2, num_attention_heads=8,
                    num_key_value_heads=8, vocab_size=64)
whole = take_apart(skeleton(shape, torch.float32), [ParamGroup("*", 0.0)])
parts = take_apart(whole.model, [ParamGroup("*", 0.0)], int(sys.argv[1]))
engine = Engine(parts, Settings(torch.device("cpu"), slots=2, store=Path(sys.argv[2])))
engine.fill(random_values(whole, 1, torch.device("cpu")))
ids = torch.arange(32).view(1, 32)
Path("/proc/self/clear_refs").write_text("5")
status = lambda key: int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1])
for _ in range(2): engine.step([{"input_ids": ids, "labels": ids}], lr=1e-3)
print(json.dumps([max(b.numel for b in parts.blocks), status("VmHWM")]))
engine.close()
"""


@pytest.mark.slow
def test_the_measured_peak_is_lower_by_what_slots_and_gradients_lose(tmp_path) -> None:
    def took(most):
        command = [sys.executable, "-c", PEAK, str(most), tmp_path / str(most)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    (large, whole), (small, cut) = took(0), took(1)
    assert small < large / 3
    assert (whole - cut) * 1024 > 2 * 4 * (large - small)
