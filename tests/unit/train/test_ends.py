"""Embedding and head that stream: the bits of plain training, less memory, and a run that goes on with them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy as np  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from fairlead.errors import TrainError  # noqa: E402
from fairlead.train import ParamGroup, Session, Settings, estimate, load, skeleton, take_apart  # noqa: E402
from fairlead.train.activations import play  # noqa: E402
from fairlead.train.cuts import another_order  # noqa: E402
from fairlead.train.gradients import Rows  # noqa: E402
from fairlead.train.plan import check, need  # noqa: E402
from support.families import FAMILIES, config  # noqa: E402
from support.train_ranks import on_ranks, train_session  # noqa: E402
from support.training import GROUPS, compare, first_weights, micro_batches, train_streamed  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

TIED = ("gemma2", "gemma3_text", "gpt2", "cohere2", "opt")
"""Also caps, scales, learned positions, scaled logits, a norm behind the embedding."""
APART = ("llama", "phi", "mixtral", "llama4_text", "gpt_neox")
"""Also dropout, a bias of the head, the losses of routers, a model that asks where its embedding is."""


def apart(family, dtype=torch.float32, most=0, **more):
    return take_apart(skeleton(config(family, **more), dtype), GROUPS, most, ends=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", [*TIED, *APART])
def test_equal_to_the_bit(family, dtype) -> None:
    roles = [block.role for block in apart(family).ends]
    assert roles == (["both"] if family in TIED else ["embedding", "head"])
    wrong, results = compare(config(family), dtype=dtype, clip=0.05, ends=True, slots=1)
    assert wrong == []
    assert any(result.clip < 1 for result in results)


WAYS = {
    "bf16, one micro-batch": {"accumulation": 1, "dtype": torch.bfloat16},
    "three micro-batches": {"accumulation": 3},
    "no clipping": {"clip": None},
    "in a store": {"store": True, "dtype": torch.bfloat16},
    "pieces of layers, in a store": {"store": True, "most": 1},
    "some blocks on the device": {"on_device": frozenset({0, 1, 3})},
    "all blocks on the device": {"on_device": frozenset(range(7))},
    "the embedding frozen": {"frozen": ("model.embed_tokens.weight",)},
    "only the embedding trained": {"frozen": "all but the embedding"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_other_ways_of_working(family, way, tmp_path) -> None:
    way = dict(WAYS[way])
    if way.pop("store", False):
        way["store"] = tmp_path / "store"
    if way.get("frozen") == "all but the embedding":
        way["frozen"] = tuple(name for name in first_weights(config(family)) if "embed" not in name)
    wrong, _ = compare(config(family), ends=True, **way)
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_whose_embedding_can_stream(family) -> None:
    parts = apart(family)
    if not parts.ends or another_order(parts):
        pytest.skip("its embedding stays on the device")
    wrong, _ = compare(config(family), dtype=torch.bfloat16, clip=0.02, ends=True, steps=2)
    assert wrong == []


@pytest.mark.parametrize("family", ["llama", "gemma2", "opt"])
def test_a_head_in_pieces_gives_the_bits_that_it_gives_on_the_device(family) -> None:
    shape = config(family)
    first, data = first_weights(shape), micro_batches(shape.vocab_size, steps=2, accumulation=2)
    both = [
        train_streamed(shape, first, data, [1e-3] * 2, clip=0.1, seed=7, head_tokens=5, ends=ends)
        for ends in (False, True)
    ]
    (stays, one), (streams, other) = both
    assert [(r.loss, r.grad_norm) for r in stays] == [(r.loss, r.grad_norm) for r in streams]
    assert all(torch.equal(t, other[name][kind]) for name, kinds in one.items() for kind, t in kinds.items())


@pytest.mark.parametrize("tokens", [7, 400])
def test_rows_add_up_as_autograd_does(tokens) -> None:
    """Head and embedding of a micro-batch first, in bf16; then micro-batches in turn, in fp32."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(0, 90, (3, tokens), generator=generator)
    heads = torch.randn(3, 90, 8, generator=generator).bfloat16()
    lookups = torch.zeros_like(heads)
    for lookup, row in zip(lookups, ids, strict=True):
        lookup.index_add_(0, row, torch.randn(tokens, 8, generator=generator).bfloat16())
    expected = torch.zeros(90, 8)
    total = torch.zeros(90, 8)
    rows = Rows(ids.unique())
    for head, lookup in zip(heads, lookups, strict=True):
        expected += (head + lookup).float()
        total += head
        rows.wait(head)
    assert not torch.equal(total, expected)
    for lookup in lookups:
        rows.join(lookup)
    rows.put(total)
    assert torch.equal(total, expected)


def test_a_head_that_the_model_does_not_call_stays(monkeypatch) -> None:
    assert another_order(apart("llama")) == ""
    parts = apart("llama")
    monkeypatch.setattr(
        type(parts.model.lm_head), "__call__", lambda self, x: torch.nn.functional.linear(x, self.weight)
    )
    assert another_order(parts) != ""


# plans and runs

MANY = {"vocab_size": 262_144, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}

TEXT = """
[model]
path = "model"
compute = "fp32"
init = "{init}"
[data]
tokens = "tokens.npy"
[run]
steps = 3
rows = 2
accumulation = 2
store = "{store}"
metrics = "{store}.jsonl"
[optimizer]
lr = 1e-3
clip = 0.05
[memory]
host_gib = {gib!r}
ends = "{ends}"
"""


def written(folder, store, gib=16.0, ends="auto", init="weights"):
    (folder / f"{store}.toml").write_text(TEXT.format(store=store, gib=gib, ends=ends, init=init))
    return load(folder / f"{store}.toml")


def prepared(folder, family, **more):
    shape = config(family, **more)
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(shape, dtype=torch.float32).save_pretrained(folder / "model")
    np.save(folder / "tokens.npy", np.random.default_rng(1).integers(3, 90, (16, 12), np.int64))


def host(plan):
    return plan.need.total("host")


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_vocabulary_of_262_thousand_fits_where_it_did_not(family, tmp_path) -> None:
    config(family, **MANY).save_pretrained(tmp_path / "model")
    np.save(tmp_path / "tokens.npy", np.zeros((16, 12), np.int64))
    stays = estimate(written(tmp_path, "stays", ends="stay", init="random"), tmp_path)
    streams = estimate(written(tmp_path, "streams", ends="stream", init="random"), tmp_path)
    assert "so it is asked for" in streams.cut
    assert host(streams) < host(stays) - 2 * 4 * MANY["vocab_size"] * MANY["hidden_size"]
    gib = host(streams) / 2**30 * 1.01
    before = estimate(written(tmp_path, "before", gib, ends="stay", init="random"), tmp_path)
    assert before.shortfall is not None
    now = estimate(written(tmp_path, "now", gib, init="random"), tmp_path)
    assert now.shortfall is None
    assert now.shape.ends
    assert "embed_tokens" in now.cut
    assert "more host memory" in now.cut  # why
    ample = estimate(written(tmp_path, "ample", init="random"), tmp_path)
    assert not ample.shape.ends
    assert ample.cut == ""
    less = estimate(written(tmp_path, "less", gib * 0.8, init="random"), tmp_path)
    assert less.shortfall is not None
    assert "iB more host memory" in less.shortfall.message
    assert "of embedding or head" in less.shortfall.message


def test_gemma_of_27_billion_on_a_gpu_of_24_gib() -> None:
    """Planned; 4 x 2,048 tokens in bf16, the head's loss in pieces. Of such a GPU 22 GiB are free."""
    shape = transformers.Gemma3TextConfig(
        vocab_size=262_144,
        hidden_size=5376,
        intermediate_size=21504,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=16,
        head_dim=128,
    )
    model = skeleton(shape, torch.bfloat16)
    settings = Settings(torch.device("cuda"), torch.bfloat16, accumulation=4, slots=2, head_tokens=1024)

    def needed(ends, rows=1):
        parts = take_apart(model, [ParamGroup("*", 0.0)], ends=ends)
        found = play(parts, torch.bfloat16, rows, 2048, 1024, 4, device="cuda")
        return need(parts.blocks, settings, found, tokens=4 * 2048, active=1)

    limits = {"device": 22 * 2**30}
    check(needed(True), limits)
    with pytest.raises(TrainError, match="more device memory"):
        check(needed(False), limits)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_run_whose_ends_stream_is_stopped_gone_on_with_and_exported_with_the_same_bits(family, tmp_path) -> None:
    prepared(tmp_path, family, vocab_size=16_384, hidden_size=256)
    ample = written(tmp_path, "ample")
    tight = host(estimate(written(tmp_path, "asked", ends="stream"), tmp_path)) / 2**30 * 1.001
    with Session.open(ample, tmp_path) as run:
        assert not run.engine.parts.ends
        plain = [step.result for step in run.train()]
        expected = {name: {kind: t.clone() for kind, t in kinds.items()} for name, kinds in run.state()}
        run.export(tmp_path / "whole")
    with Session.open(written(tmp_path, "tight", tight), tmp_path) as run:
        assert run.engine.parts.ends
        first = [step.result for step in run.train(1)]
    with Session.open(written(tmp_path, "tight", ends="stay"), tmp_path, resume=True) as run:  # it has begun so
        assert run.engine.parts.ends
        rest = [step.result for step in run.train()]
        found = {name: {kind: t.clone() for kind, t in kinds.items()} for name, kinds in run.state()}
        run.export(tmp_path / "out")
    assert [(r.loss, r.grad_norm) for r in first + rest] == [(r.loss, r.grad_norm) for r in plain]
    assert found.keys() == expected.keys()
    assert all(torch.equal(t, found[name][kind]) for name, kinds in expected.items() for kind, t in kinds.items())
    net = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert all(torch.equal(param, found[name]["p"]) for name, param in net.named_parameters())


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_ranks_have_the_losses_of_one_host(family, tmp_path) -> None:
    prepared(tmp_path, family)
    with Session.open(written(tmp_path, "alone"), tmp_path) as run:
        plain = [step.result.loss for step in run.train()]
        expected = {name: {kind: t.clone() for kind, t in kinds.items()} for name, kinds in run.state()}
    written(tmp_path, "train", ends="stream")
    assert on_ranks(2, train_session, tmp_path, steps=2, resume=False) == [0, 0]
    with Session.open(load(tmp_path / "train.toml"), tmp_path, resume=True) as run:
        assert run.engine.parts.ends
        found = [told["loss"] for told in map(json.loads, run.metrics.read_text().splitlines())]
        found += [step.result.loss for step in run.train()]
        state = dict(run.state())
        assert all(torch.equal(t, state[name][kind]) for name, kinds in expected.items() for kind, t in kinds.items())
    assert found == plain


def test_ranks_take_the_loss_in_pieces(tmp_path) -> None:
    """Sums of pieces depend on the number of ranks, and on nothing else."""
    prepared(tmp_path, "gemma2")
    told = []
    for ends in ("stay", "stream"):
        written(tmp_path, "train", ends=ends)
        text = (tmp_path / "train.toml").read_text().replace('"train', f'"{ends}')
        (tmp_path / "train.toml").write_text(text + "head_tokens = 5\n")
        assert on_ranks(2, train_session, tmp_path, steps=3, resume=False) == [0, 0]
        lines = (tmp_path / f"{ends}.jsonl").read_text().splitlines()
        told.append([(line["loss"], line["grad_norm"]) for line in map(json.loads, lines)])
    assert told[0] == told[1]
    assert len(told[0]) == 3


@pytest.mark.parametrize("part", ["depth", "vocabulary"])
def test_the_script_that_measures_memory_runs(part, tmp_path) -> None:
    script = Path(__file__).parents[3] / "bench" / "train_memory.py"
    command = [sys.executable, script, part, "--smoke", "--store", tmp_path / "store"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    *told, said = done.stdout.splitlines()
    assert all(json.loads(line)["taken"] > 0 for line in told)
    assert len(told) == (2 if part == "depth" else 1)
    assert "layers: " in said or "of logits" in said
    assert not (tmp_path / "store").exists()
