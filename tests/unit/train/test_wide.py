"""What a model keeps in fp32 while it computes in bf16, as routers of experts: so it is computed with, to the bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from fairlead.train import Engine, ParamGroup, Session, Settings, disk, load, skeleton, take_apart  # noqa: E402
from fairlead.train.activations import play  # noqa: E402
from fairlead.train.blobs import PAGE  # noqa: E402
from fairlead.train.plan import need  # noqa: E402
from support.families import config  # noqa: E402
from support.train_ranks import on_ranks, train_engine  # noqa: E402
from support.training import GROUPS, compare, first_weights, micro_batches, train_plainly, unequal  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

BF16 = torch.bfloat16


def wide(family):
    """Names of what a family keeps in fp32."""
    return [name for name, param in skeleton(config(family), BF16).named_parameters() if param.dtype == torch.float32]


@pytest.fixture
def kept():
    names = wide("deepseek_v3")
    if not names:
        pytest.skip("this release of transformers keeps no router in fp32")
    return names


def test_it_stays_on_the_device_and_alone(kept) -> None:
    parts = take_apart(skeleton(config("deepseek_v3"), BF16), GROUPS)
    assert [param.name for param in parts.blocks[0].params if param.wide] == kept
    assert not any(param.wide for block in parts.blocks[1:] for param in block.params)
    found = play(parts, BF16, 2, 16, 0)
    terms = need(parts.blocks, Settings(torch.device("cpu"), BF16), found, tokens=32, active=1).terms
    (bytes_,) = [term.bytes for term in terms if "keeps in fp32" in term.what]
    assert bytes_ == 4 * len(kept) * 4 * 32  # four experts, 32 wide
    narrow = take_apart(skeleton(config("deepseek_v3"), torch.float32), GROUPS)
    assert not any(param.wide for block in narrow.blocks for param in block.params)
    assert any("gate.weight" in param.name for param in narrow.blocks[2].params)


@pytest.mark.parametrize(
    "way",
    [
        {"accumulation": 1},
        {"store": True},
        {"store": True, "freeze": True},
        {"on_device": frozenset(range(5)), "clip": None},
        {"most": True, "store": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "glm4_moe"])
def test_equal_to_the_bit(family, way, tmp_path, kept) -> None:
    way = dict(way)
    if way.pop("store", False):
        way["store"] = tmp_path / "store"
    if way.pop("freeze", False):
        way["frozen"] = tuple(kept)
    if way.pop("most", False):
        way["most"] = max(b.numel for b in take_apart(skeleton(config(family), BF16), GROUPS).blocks[1:]) - 1
    wrong, results = compare(config(family), **{"dtype": BF16, "clip": 0.02, **way})
    assert wrong == []
    if way.get("clip", 0.02):
        assert any(result.clip < 1 for result in results)


def test_ranks_give_the_bits_of_plain_training(kept, tmp_path) -> None:
    words = {"family": "deepseek_v3", "dtype": "bfloat16", "clip": 0.02, "steps": 2}
    assert on_ranks(2, train_engine, tmp_path, **words) == [0, 0]
    shape = config("deepseek_v3")
    data = micro_batches(shape.vocab_size, steps=2, accumulation=4)
    rates = [1e-3 * min(1.0, (step + 1) / 3) for step in range(2)]
    plain = train_plainly(shape, first_weights(shape), data, rates, dtype=BF16, clip=0.02, seed=7)
    for rank in range(2):
        told, states = torch.load(tmp_path / f"rank-{rank}.pt")
        assert [loss for loss, _, _ in told] == plain[0]
        assert not unequal(plain[2], states)


def test_a_stretch_is_read_from_any_place_of_the_disk(tmp_path, monkeypatch) -> None:
    """Pages and pieces begin elsewhere than parameters do."""
    monkeypatch.setattr(disk, "PIECE", PAGE)
    groups = (ParamGroup("*embed*", 0.0, trainable=False), *GROUPS)
    parts = take_apart(skeleton(config("llama", vocab_size=400), torch.float32), groups)
    engine = Engine(parts, Settings(torch.device("cpu"), store=tmp_path / "store"))
    first = first_weights(config("llama", vocab_size=400))
    engine.fill(first.items())
    for home in engine.homes:
        for param in home.block.params:
            assert torch.equal(home.read(param.span).view(param.shape), first[param.name]), param.name
    engine.close()


TEXT = """
[model]
path = "model"
[data]
tokens = "tokens.npy"
[run]
steps = 2
rows = 2
[optimizer]
lr = 1e-3
"""


def test_a_run_is_stopped_gone_on_with_and_exported(kept, tmp_path) -> None:
    torch.manual_seed(5)
    net = AutoModelForCausalLM.from_config(config("deepseek_v3"), dtype=torch.float32)
    net.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "tokens.npy", np.random.default_rng(1).integers(3, 90, (16, 12), np.int64))
    (tmp_path / "train.toml").write_text(TEXT)
    asked = load(tmp_path / "train.toml")
    with Session.open(asked, tmp_path) as run:
        list(run.train(1))
    with Session.open(asked, tmp_path, resume=True) as run:
        list(run.train())
        found = {name: kinds["p"].clone() for name, kinds in run.state()}
        run.export(tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert all(torch.equal(param, found[name]) for name, param in again.named_parameters())
    assert not torch.equal(found[kept[0]], net.get_parameter(kept[0]))
