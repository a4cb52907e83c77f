"""State on disk of several ranks: a step that all have or none, whoever is killed when, and whoever goes on with it."""

from __future__ import annotations

import platform
import random
import shutil
import signal
from itertools import product

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.errors import TrainError  # noqa: E402
from fairlead.train import disk  # noqa: E402
from fairlead.train.config import load  # noqa: E402
from fairlead.train.manifest import Manifest  # noqa: E402
from fairlead.train.session import Session  # noqa: E402
from fairlead.train.shards import Survey, choose, survey  # noqa: E402
from fairlead.train.store import manifest_of  # noqa: E402
from support.train_kill import RATES, STEPS, engine_of, problem  # noqa: E402
from support.train_ranks import on_ranks, train_session  # noqa: E402
from support.train_shards import train_shards  # noqa: E402
from support.training import train_plainly, unequal  # noqa: E402
from unit.train.test_session import TEXT, losses, prepare  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

SHARED, LOCAL = ["store"] * 3, ["node-0/store", "node-1/store", "node-2/store"]


@pytest.fixture(scope="module")
def plain():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    shape, first, data = problem()
    found = train_plainly(shape, first, data, RATES, dtype=torch.float32, clip=0.02, seed=7)
    torch.set_num_threads(before)
    return found


# who serves what


def test_a_shard_goes_to_the_rank_of_its_number_else_to_who_has_least() -> None:
    everything = [(3, shard, 4) for shard in range(3)]
    assert choose([everything] * 3) == Survey(3, (0, 1, 2), 4)
    assert choose([everything] * 2) == Survey(3, (0, 1, 0), 4)
    assert choose([everything] * 5) == Survey(3, (0, 1, 2), 4)
    assert choose([[(2, 1, 4)], [(2, 0, 4)]]) == Survey(2, (1, 0), 4)
    assert choose([[(1, 0, 4)], []]) == Survey(1, (0,), 4)


def test_the_step_is_the_newest_that_all_shards_have() -> None:
    assert choose([[(2, 0, 4)], [(2, 1, 5)]]) == Survey(2, (0, 1), 4)
    assert choose([[(2, 0, 4), (2, 1, 3)], [(2, 1, 5)]]) == Survey(2, (0, 1), 4), "an old copy was taken"


def test_a_run_has_begun_when_all_shards_have_first_weights() -> None:
    assert choose([[], []]) is None
    assert choose([[(2, 0, 0)], []]) is None
    assert choose([[(2, 0, 0)], [(2, 1, -1)]]) is None
    assert choose([[(2, 0, 0)], [(2, 1, 0)]]) == Survey(2, (0, 1), 0)
    assert choose([[(2, 0, 7)], []]) == Survey(2, (0, -1), 7), "a shard that is lost is no beginning"


@pytest.mark.parametrize("killed", range(3))
def test_at_any_moment_of_two_steps_the_choice_is_what_may_be_gone_on_with(killed) -> None:
    """All interleavings of three ranks that prepare and, once all have, update."""
    for at in product(range(2), repeat=3):  # manifests of step 2, written or not
        found = choose([[(3, rank, 1 + done)] for rank, done in enumerate(at)])
        assert found is not None
        assert found.steps == (2 if all(at) else 1)
        assert all(1 + done - found.steps in {0, 1} for done in at)


def test_what_is_withdrawn_is_the_step_before() -> None:
    last = Manifest(
        steps=5, run="r", counts={"a": 5, "b": 1, "c": 3}, seen=["a", "b"], gradients=[7], loss=2.0, before=(3.0, 0.5)
    )
    past = last.withdrawn()
    assert (past.steps, past.loss, past.grad_norm) == (4, 3.0, 0.5)
    assert past.counts == {"a": 4, "c": 3}
    assert not past.gradients


# runs


def right(folder, plain) -> None:
    """What was told, and the state at the end, are those of plain training."""
    lines = [line for line in (folder / "told").read_text().splitlines() if not line.startswith("from")]
    told = {int(line.split()[0]): [float(number) for number in line.split()[1:]] for line in lines}
    assert told == {step: [plain[0][step], plain[1][step]] for step in told}
    assert unequal(plain[2], torch.load(folder / "state.pt")) == []


def killed(folder, plain, rank, at, places) -> None:
    folder.mkdir()
    codes = on_ranks(2, train_shards, folder, places=places, kill=(rank, at))
    assert codes[rank] == -signal.SIGKILL
    told = folder / "told"
    done = sum(not line.startswith("from") for line in told.read_text().splitlines()) if told.exists() else 0
    assert on_ranks(2, train_shards, folder, places=places) == [0, 0]
    begun = [int(line.split()[1]) for line in told.read_text().splitlines() if line.startswith("from")][-1]
    assert begun in {done, done + 1}, "a finished step was lost"
    right(folder, plain)


def steps_of(folder, places) -> list[int]:
    """What each rank's manifest says."""
    return [
        manifest_of(folder / places[rank] / f"shard-{rank}-of-2").read().steps  # type: ignore[union-attr]
        for rank in range(2)
    ]


@pytest.mark.parametrize(("when", "steps", "begun"), [("before", [2, 1], 1), ("after", [2, 2], 2)])
def test_a_step_is_committed_with_the_last_manifest(when, steps, begun, tmp_path, plain) -> None:
    """A rank that has a manifest more than the other withdraws it; with both, nobody needs to have been told."""
    codes = on_ranks(2, train_shards, tmp_path, places=LOCAL, at_commit=when)
    assert codes[0] > 0
    assert codes[1] == -signal.SIGKILL
    assert steps_of(tmp_path, LOCAL) == steps
    assert on_ranks(2, train_shards, tmp_path, places=LOCAL) == [0, 0]
    assert f"from {begun}" in (tmp_path / "told").read_text().splitlines()
    right(tmp_path, plain)


def kills(tmp_path, plain, num, seed) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    assert on_ranks(2, train_shards, whole, places=LOCAL) == [0, 0]
    right(whole, plain)
    draw = random.Random(seed)
    for trial in range(num):
        rank = trial % 2
        at = draw.randint(1, int((whole / f"operations-{rank}").read_text()))
        killed(tmp_path / f"kill-{trial}-{rank}-{at}", plain, rank, at, draw.choice([SHARED, LOCAL]))


def test_a_rank_killed_anywhere_costs_no_finished_step_and_no_bit(tmp_path, plain) -> None:
    kills(tmp_path, plain, 2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thirty_kills(tmp_path, plain) -> None:
    kills(tmp_path, plain, 30, seed=2)


@pytest.mark.parametrize(
    "after", [pytest.param(3, marks=pytest.mark.slow), 30, pytest.param(60, marks=pytest.mark.slow)]
)
def test_a_full_disk_of_one_rank_ends_the_run_and_all_states_still_load(after, tmp_path, plain) -> None:
    codes = on_ranks(2, train_shards, tmp_path, places=LOCAL, full_after=after)
    assert min(codes) > 0 or codes[0] == -signal.SIGKILL, "the other one ends, or is ended"
    assert codes[1] == 1
    assert on_ranks(2, train_shards, tmp_path, places=LOCAL) == [0, 0]
    right(tmp_path, plain)


MORE = TEXT.replace("accumulation = 2", "accumulation = 4")


def test_three_begin_two_go_on_then_four_and_one_ends_as_if_it_had_been_one_host(tmp_path) -> None:
    alone, many = tmp_path / "alone", tmp_path / "many"
    for folder in (alone, many):
        folder.mkdir()
        prepare(folder, "llama", MORE)
    with Session.open(load(alone / "train.toml"), alone) as run:
        list(run.train())
        expected = dict(run.state())
    assert on_ranks(3, train_session, many, steps=1, resume=False) == [0] * 3
    assert on_ranks(2, train_session, many, steps=1, resume=True) == [0] * 2
    assert on_ranks(4, train_session, many, steps=1, resume=True) == [0] * 4, "one has no shard"
    with Session.open(load(many / "train.toml"), many, resume=True) as run:
        list(run.train())
        for name, kinds in run.state():
            assert all(torch.equal(kinds[kind], expected[name][kind]) for kind in kinds)
    assert losses(many) == losses(alone)
    with pytest.raises(TrainError, match="already holds a run"):
        Session.open(load(many / "train.toml"), many)


def test_shards_are_found_on_the_nodes_where_they_are(tmp_path, plain) -> None:
    """First one of the nodes is not there, then both are, in another order."""
    assert on_ranks(2, train_shards, tmp_path, places=LOCAL, steps=1) == [0, 0]
    assert on_ranks(2, train_shards, tmp_path, places=[LOCAL[2], LOCAL[0]], steps=1) == [1, 1]
    assert on_ranks(2, train_shards, tmp_path, places=[LOCAL[1], LOCAL[0]]) == [0, 0]
    assert "from 1" in (tmp_path / "told").read_text()
    right(tmp_path, plain)


def test_a_shard_that_nobody_sees_is_named_with_its_node(tmp_path) -> None:
    assert on_ranks(2, train_shards, tmp_path, places=SHARED, steps=1) == [0, 0]
    shutil.rmtree(tmp_path / "store" / "shard-1-of-2")
    with pytest.raises(TrainError, match=f"sees shard 1 of 2, which lay on {platform.node()}") as found:
        survey(tmp_path / "store")
    assert found.value.code == "train/shard-lost"


def test_what_was_never_filled_is_cleared_and_whoever_comes_begins_anew(tmp_path, plain, monkeypatch) -> None:
    assert on_ranks(2, train_shards, tmp_path, places=SHARED, kill=(1, 3))[1] == -signal.SIGKILL
    monkeypatch.setattr(disk, "PIECE", 4096)
    shape, first, data = problem()
    engine = engine_of(shape, tmp_path / "store")
    assert not engine.filled
    engine.fill(first.items())
    results = [engine.step(data[step], lr=RATES[step], seed=7) for step in range(STEPS)]
    assert unequal(plain[2], engine.state()) == []
    assert [result.loss for result in results] == plain[0]
    engine.close()
    assert list((tmp_path / "store").rglob("shard-*/*.bin")) == []
