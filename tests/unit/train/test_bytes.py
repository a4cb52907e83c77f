"""What a plan says is read from the store and written to it in a step is what a step reads and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.errors import TrainError  # noqa: E402
from fairlead.train import ParamGroup, Settings, estimate, load, skeleton, take_apart  # noqa: E402
from fairlead.train.activations import Activations  # noqa: E402
from fairlead.train.blobs import PAGE  # noqa: E402
from fairlead.train.plan import need  # noqa: E402
from fairlead.train.team import Planned  # noqa: E402
from support.families import config  # noqa: E402
from support.train_ranks import count_bytes, on_ranks  # noqa: E402
from unit.train.test_session import TEXT, prepare  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

CPU = torch.device("cpu")
SHAPE = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 512, "num_hidden_layers": 5}
FREEZE = "*mlp*"


def planned(slots, rank, world, *, frozen=False, dtype=torch.float32, ends=False):
    groups = (ParamGroup(FREEZE, 0.0, trainable=False), ParamGroup("*", 0.1)) if frozen else (ParamGroup("*", 0.1),)
    parts = take_apart(skeleton(config("llama", **SHAPE), dtype), groups, ends=ends)
    team = Planned(world, world, CPU, rank) if world > 1 else None
    settings = Settings(CPU, dtype, accumulation=4, slots=slots, store=Path("store"), team=team)
    return need(parts.blocks, settings, Activations(1, 1, 1, 1), tokens=1, active=1)


@pytest.mark.parametrize(
    ("world", "slots", "more"),
    [
        (1, 3, {}),
        (1, 1, {"frozen": True}),
        (2, 3, {}),
        (3, 1, {"dtype": torch.bfloat16}),
        (2, 2, {"frozen": True}),
        (1, 2, {"ends": True}),
        (2, 2, {"ends": True}),
    ],
    ids=str,
)
def test_bytes_of_each_rank(world, slots, more, tmp_path) -> None:
    words = {"shape": SHAPE, "slots": slots, "freeze": FREEZE if more.get("frozen") else ""}
    words["ends"] = more.get("ends", False)
    words["dtype"] = "bfloat16" if "dtype" in more else "float32"
    assert on_ranks(world, count_bytes, tmp_path, **words) == [0] * world
    for rank in range(world):
        read, written = json.loads((tmp_path / f"bytes-{rank}.json").read_text())
        said = planned(slots, rank, world, **more)
        assert said.read_bytes == pytest.approx(read, rel=0.03, abs=10 * PAGE)
        assert said.written_bytes == pytest.approx(written, rel=0.03, abs=10 * PAGE)
        assert (said.wire_bytes > 0) is (world > 1)


RANKS = TEXT.replace("accumulation = 2", "accumulation = 4")


def test_an_estimate_for_ranks_shares_the_state_and_the_node(tmp_path) -> None:
    prepare(tmp_path, text=RANKS)
    asked = load(tmp_path / "train.toml")
    alone, four, apart = (estimate(asked, tmp_path, ranks=n, nodes=m) for n, m in ((1, 1), (4, 1), (4, 4)))
    assert four.need.total("disk") < alone.need.total("disk") * 0.6
    assert four.limits["disk"] == pytest.approx(apart.limits["disk"] / 4, rel=0.01)
    assert four.limits["host"] == pytest.approx(apart.limits["host"] / 4, rel=0.2)
    with pytest.raises(TrainError, match="4 micro-batches, too few for 5 ranks"):
        estimate(asked, tmp_path, ranks=5)


def test_time_of_ranks_has_the_disk_that_they_share(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.train.measure._SAMPLE", 1 << 16)
    monkeypatch.setattr("fairlead.train.measure._SECONDS", 0.01)
    prepare(tmp_path, text=RANKS)
    asked = load(tmp_path / "train.toml")
    plan = estimate(asked, tmp_path, timed=True, ranks=2)
    assert "the disk that 2 ranks share" in plan.pace.bounds
    assert "the disk that 2 ranks share" not in estimate(asked, tmp_path, timed=True, ranks=2, nodes=2).pace.bounds
