"""The store: equal to the bit, whole after every kill, and errors that say what is wrong."""

from __future__ import annotations

import errno
import os
import random
import signal
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.errors import DiskFull, RunError, TrainError  # noqa: E402
from fairlead.train import blobs, disk, slots  # noqa: E402
from support.families import config  # noqa: E402
from support.train_kill import RATES, STEPS, Trials, engine_of, problem  # noqa: E402
from support.training import compare, train_plainly, unequal  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread", "small_pieces")]

WAYS = {
    "fp32": {},
    "one slot": {"slots": 1},
    "bf16": {"dtype": torch.bfloat16},
    "bf16, one micro-batch": {"dtype": torch.bfloat16, "accumulation": 1},
    "no clipping": {"clip": None},
    "frozen parameters": {"frozen": ("model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight")},
}


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(disk, "PIECE", 4096)


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.mark.parametrize("way", WAYS)
def test_equal_to_the_bit(way, store) -> None:
    wrong, _ = compare(config("llama"), store=store, **WAYS[way])
    assert wrong == []


def test_the_page_cache_where_o_direct_is_refused(store, monkeypatch) -> None:
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & blobs._DIRECT and str(path).endswith(".bin"):
            raise OSError(errno.EINVAL, "no")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    wrong, _ = compare(config("llama"), store=store)
    assert wrong == []


def trained(folder, steps):
    """A store after some steps; their results."""
    shape, first, data = problem()
    engine = engine_of(shape, folder)
    engine.fill(first.items())
    results = [engine.step(data[step], lr=RATES[step], seed=7) for step in range(steps)]
    engine.close()
    return results


def went_on(folder):
    """The losses of the rest of the run, and the state at its end."""
    shape, _, data = problem()
    engine = engine_of(shape, folder)
    losses = [engine.step(data[step], lr=RATES[step], seed=7).loss for step in range(engine.steps, STEPS)]
    state = engine.state()
    engine.close()
    return losses, state


@pytest.fixture(scope="module")
def plain():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    shape, first, data = problem()
    found = train_plainly(shape, first, data, RATES, dtype=torch.float32, clip=0.02, seed=7)
    torch.set_num_threads(before)
    return found


@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_a_later_run_goes_on(steps, store, plain) -> None:
    trained(store, steps)
    losses, state = went_on(store)
    assert losses == plain[0][steps:]
    assert unequal(plain[2], state) == []


def test_what_counts_is_never_written_over(store, monkeypatch) -> None:
    """Also where sealing takes longer than updates."""
    shape, first, data = problem()
    engine = engine_of(shape, store)
    engine.fill(first.items())
    file = engine.store.stores[0].layers
    counts = {home.block.index: home.slot for home in engine.store.homes.values() if home.slots is file}
    seal, write, over = slots.Slots.seal, blobs.BlobFile.write, []

    def sealed(self, slot, header) -> None:
        time.sleep(0.03)
        seal(self, slot, header)
        counts.update({header.block: slot} if self is file else {})

    def written(self, source, offset) -> None:
        if self is file.file and offset // file.size in counts.values():
            over.append(offset)
        write(self, source, offset)

    monkeypatch.setattr(slots.Slots, "seal", sealed)
    monkeypatch.setattr(blobs.BlobFile, "write", written)
    before = dict(counts)
    all_steps(engine, data)
    assert over == []
    assert counts != before
    engine.close()


def killed(trials, folder, kill_at, plain):
    told = folder.with_suffix(".told")
    assert trials.run(folder, told, kill_at) == -signal.SIGKILL
    done = sum(not line.startswith("from") for line in told.read_text().splitlines()) if told.exists() else 0
    assert trials.run(folder, told) == 0
    lines = told.read_text().splitlines()
    begun = int([line for line in lines if line.startswith("from")][-1].split()[1])
    assert begun in {done, done + 1}, "a finished step was lost"
    losses = dict(line.split()[:2] for line in lines if not line.startswith("from"))
    assert [float(loss) for loss in losses.values()] == [plain[0][int(step)] for step in losses]
    assert unequal(plain[2], torch.load(folder.with_suffix(".pt"))) == []


def kill_tests(tmp_path, plain, num, seed):
    trials = Trials()
    told = tmp_path / "whole.told"
    assert trials.run(tmp_path / "whole", told) == 0
    operations = int(told.with_suffix(".operations").read_text())
    for kill_at in sorted(random.Random(seed).sample(range(1, operations + 1), num)):
        killed(trials, tmp_path / f"kill-{kill_at}", kill_at, plain)


def test_killed_anywhere_it_goes_on_to_the_bit(tmp_path, plain) -> None:
    kill_tests(tmp_path, plain, 4, seed=1)


@pytest.mark.slow
def test_fifty_kills(tmp_path, plain) -> None:
    kill_tests(tmp_path, plain, 50, seed=2)


def test_a_second_run_on_the_same_store_waits_its_turn(store) -> None:
    shape, first, _ = problem()
    engine = engine_of(shape, store)
    engine.fill(first.items())
    with pytest.raises(RunError, match="another run of fairlead is at work"):
        engine_of(shape, store)
    engine.close()
    engine_of(shape, store).close()


def said_damaged(store, name):
    """Whether a store is found damaged, in this file; a flip where nothing lies is not seen."""
    try:
        went_on(store)
    except TrainError as error:
        return error.code == "train/damaged" and name in error.message
    return False


@pytest.mark.parametrize("name", ["outer.bin", "layers.bin", "gradients.bin"])
def test_a_flipped_byte_is_found(name, store) -> None:
    trained(store, 2)
    path = store / name
    raw = bytearray(path.read_bytes())
    places = [at for at in range(5000, len(raw), 997) if raw[at]]
    hits = 0
    for at in random.Random(3).sample(places, 12):
        raw[at] ^= 0x10
        path.write_bytes(raw)
        hits += said_damaged(store, name)
        raw[at] ^= 0x10
        if hits == 3:
            break
        for file in store.iterdir():  # a run that went on has changed them
            file.unlink()
        trained(store, 2)
        raw = bytearray(path.read_bytes())
    assert hits, "every flip fell where nothing is"


def test_a_file_that_was_cut_is_found(store) -> None:
    trained(store, 1)
    os.truncate(store / "layers.bin", 8192)
    with pytest.raises(TrainError, match="has 8,192 bytes instead of") as found:
        went_on(store)
    assert found.value.code == "train/damaged"


def test_a_manifest_that_was_cut_is_found(store) -> None:
    trained(store, 1)
    os.truncate(store / "manifest.json", 40)
    with pytest.raises(RunError, match="does not read"):
        went_on(store)


def test_the_store_of_another_run_is_refused(store) -> None:
    trained(store, 1)
    shape, _, _ = problem()
    from fairlead.train import Engine, Settings, skeleton, take_apart

    parts = take_apart(skeleton(shape, torch.float32), ())
    with pytest.raises(TrainError, match="another model"):
        Engine(parts, Settings(torch.device("cpu"), accumulation=2, store=store, run="other"))


@pytest.mark.parametrize(
    "fault",
    [("pwritev", errno.ENOSPC), ("pwritev", errno.EIO), ("preadv", errno.EIO), ("fdatasync", errno.EIO)],
)
@pytest.mark.parametrize("after", [0, 4, 13])
def test_an_error_of_the_disk_is_said_and_the_state_still_loads(fault, after, store, monkeypatch, plain) -> None:
    call, number = fault
    shape, first, data = problem()
    engine = engine_of(shape, store)
    engine.fill(first.items())
    engine.step(data[0], lr=RATES[0], seed=7)
    real, calls = getattr(os, call), [0]

    def fail(*args):
        calls[0] += 1
        if calls[0] > after:
            raise OSError(number, os.strerror(number))
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises((TrainError, DiskFull)) as found:
            all_steps(engine, data)
        assert found.value.code == ("train/disk-full" if number == errno.ENOSPC else "train/io")
        engine.close()
    losses, state = went_on(store)
    assert losses == plain[0][STEPS - len(losses) :]
    assert unequal(plain[2], state) == []


def all_steps(engine, data):
    for step in range(engine.steps, STEPS):
        engine.step(data[step], lr=RATES[step], seed=7)
    engine.flush()


def test_no_room_for_the_store(store, monkeypatch) -> None:
    def full(*args):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull, match="no room left for"):
        engine_of(problem()[0], store)
    monkeypatch.undo()
    monkeypatch.setattr(disk, "PIECE", 4096)
    trained(store, 1)


def test_short_reads_and_writes_are_gone_on_with(store, monkeypatch, plain) -> None:
    preadv, pwritev = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:4096]], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: pwritev(fd, [views[0][:4096]], at))
    trained(store, 1)
    losses, state = went_on(store)
    assert losses == plain[0][1:]
    assert unequal(plain[2], state) == []
