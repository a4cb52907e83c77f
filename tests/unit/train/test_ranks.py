"""Several ranks give the bits of one host: losses, norms, state, and the files of a snapshot, whatever their number."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.train import layout  # noqa: E402
from fairlead.train.config import load  # noqa: E402
from fairlead.train.gradients import Sum  # noqa: E402
from fairlead.train.layout import Named  # noqa: E402
from fairlead.train.named import model_of, parts_of  # noqa: E402
from fairlead.train.relay import Pile  # noqa: E402
from fairlead.train.session import Session  # noqa: E402
from fairlead.train.team import share  # noqa: E402
from fairlead.train.weights import Checkpoint  # noqa: E402
from support.families import config  # noqa: E402
from support.train_ranks import on_ranks, train_engine, train_session  # noqa: E402
from support.training import first_weights, micro_batches, train_plainly, unequal  # noqa: E402
from unit.train.test_session import STEPS, TEXT, losses, prepare  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def tmp_path(tmp_path):
    """In memory where there is such a place: what a disk does is the subject of other tests."""
    if not os.access("/dev/shm", os.W_OK):
        return (yield tmp_path)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
    return None


@pytest.mark.parametrize(("num", "world"), [(4, 4), (5, 3), (7, 1), (16, 5)])
def test_every_micro_batch_has_one_rank_and_ranks_have_neighbours(num, world) -> None:
    shares = [share(num, world, rank) for rank in range(world)]
    assert [micro for mine in shares for micro in mine] == list(range(num))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("family", "world", "dtype", "clip"),
    [
        ("llama", 2, "float32", 0.5),  # with dropout
        pytest.param("mixtral", 3, "float32", 0.5, marks=pytest.mark.slow),  # its router has a loss, too
        ("gpt2", 4, "bfloat16", 0.5),  # a head tied to the embedding
        pytest.param("llama", 2, "float32", None, marks=pytest.mark.slow),
    ],
)
def test_ranks_give_the_bits_of_plain_training(family, world, dtype, clip, tmp_path) -> None:
    words = {"family": family, "dtype": dtype, "clip": clip, "steps": 3}
    assert on_ranks(world, train_engine, tmp_path, **words) == [0] * world
    shape = config(family)
    data = micro_batches(shape.vocab_size, steps=3, accumulation=4)
    rates = [1e-3 * min(1.0, (step + 1) / 3) for step in range(3)]
    plain = train_plainly(shape, first_weights(shape), data, rates, dtype=getattr(torch, dtype), clip=clip, seed=7)
    for rank in range(world):
        told, states = torch.load(tmp_path / f"rank-{rank}.pt")
        assert [loss for loss, _, _ in told] == plain[0]
        assert [norm for _, norm, _ in told] == plain[1]
        assert not unequal(plain[2], states)
    if clip is not None:
        assert min(factor for _, _, factor in told) < 1.0, "nothing was clipped"


def test_a_sum_in_stretches_is_that_of_micro_batches_also_where_some_lack_a_gradient() -> None:
    shapes = {"a": (5, 3), "b": (7,), "c": (300,)}
    block = layout.block(1, "layer", [Named(name, name, shape, 0) for name, shape in shapes.items()], ())
    generator = torch.Generator().manual_seed(0)
    have = ["ab", "bc", "abc", "c"]
    micros = [{name: torch.randn(shapes[name], generator=generator) for name in names} for names in have]
    whole = Sum(torch.zeros(block.trained))
    for micro in micros:
        whole.add(block, micro)
    for cut in range(5):  # two ranks, of which one may have nothing
        first, second = Pile(torch.device("cpu")), Pile(torch.device("cpu"))
        for micro in micros[:cut]:
            first.add(block, micro)
        for micro in micros[cut:]:
            second.add(block, micro)
        seen = set().union(*first.parts)
        found = torch.zeros(block.trained)
        for begin in range(0, block.trained, 100):
            stretch = found[begin : begin + 100]
            first.added(block, begin, stretch, set())
            second.added(block, begin, stretch, seen)
        assert torch.equal(found, whole.flat)
        assert seen.union(*second.parts) == whole.seen


def test_of_files_a_rank_reads_what_its_blocks_need_alone(tmp_path, monkeypatch) -> None:
    prepare(tmp_path, "mixtral")
    asked = load(tmp_path / "train.toml")
    model = model_of(asked, tmp_path)
    parts, checkpoint = parts_of(asked, model), Checkpoint(tmp_path / "model", model)
    read: list[str] = []
    real = Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda self, keys: read.extend(keys) or real(self, keys))
    names = [name for name, _ in checkpoint.values(parts, parts.blocks[2:3])]
    assert names == [param.name for param in parts.blocks[2].params]
    assert read
    assert all(".layers.1." in key for key in read)


MEMORY = TEXT.replace("[run]", '[run]\nkeep = "memory"\nsave_every = 1').replace("accumulation = 2", "accumulation = 4")


def run_alone(folder, *, steps=None, resume=False) -> None:
    with Session.open(load(folder / "train.toml"), folder, resume=resume) as run:
        list(run.train(steps))


def test_three_begin_two_go_on_and_one_ends_as_if_it_had_been_one_host(tmp_path) -> None:
    alone, many = tmp_path / "alone", tmp_path / "many"
    for folder in (alone, many):
        folder.mkdir()
        prepare(folder, "mixtral", MEMORY)
    run_alone(alone)
    assert on_ranks(3, train_session, many, steps=2, resume=False) == [0] * 3
    assert on_ranks(2, train_session, many, steps=1, resume=True) == [0] * 2
    run_alone(many, resume=True)
    assert len(losses(many)) == STEPS
    assert losses(many) == losses(alone)
    for name in ("snapshot-0.bin", "snapshot-1.bin"):
        assert (many / "store" / name).read_bytes() == (alone / "store" / name).read_bytes()
