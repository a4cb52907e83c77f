"""What a run must not lose, mix or go on with without a word."""

from __future__ import annotations

import json
import random
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402

from fairlead.errors import Exit, FairleadError, RunError, TrainError  # noqa: E402
from fairlead.train import disk, loss  # noqa: E402
from fairlead.train.blobs import PAGE, digest, digest_of_sums  # noqa: E402
from support.runs import opened, prepare, steps_told, trained, write  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread", "small_pieces")]


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(disk, "PIECE", 4096)


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(t, other[n][kind]) for n, kinds in one.items() for kind, t in kinds.items()
    )


def spoil(monkeypatch, *, from_step, value=float("nan")):
    """The loss of a step, and all after it."""
    whole, calls = loss.whole, [0]

    def spoiled(*args):
        found = whole(*args)
        calls[0] += found.device.type != "meta"  # a plan is no step
        return found * value if calls[0] > 2 * from_step else found

    monkeypatch.setattr(loss, "whole", spoiled)


# steps that are none


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("keep", ["disk", "memory"])
def test_a_step_that_is_not_finite_is_named_and_the_state_before_it_is_kept(keep, value, tmp_path, monkeypatch) -> None:
    toml = prepare(tmp_path, run_keep=keep)
    whole = trained(toml)
    shutil.rmtree(tmp_path / "store")
    with monkeypatch.context() as patch:
        spoil(patch, from_step=2, value=value)
        with pytest.raises(TrainError, match=r"^step 2 gives a loss of (nan|inf) and gradients of norm \S+: ") as found:
            trained(toml)
    assert found.value.code == "train/not-finite"
    assert "lr" in found.value.hint
    assert steps_told(tmp_path) == [0, 1]
    with opened(toml, resume=True) as run:
        assert run.done == 2
        assert run.export(tmp_path / "out")
    losses, state = trained(toml, resume=True)
    assert losses == whole[0][2:]
    assert same(state, whole[1])


def test_without_clipping_in_memory_the_last_snapshot_stays(tmp_path, monkeypatch) -> None:
    toml = prepare(tmp_path, run_keep="memory", run_save_every=1, optimizer_clip=0.0)
    spoil(monkeypatch, from_step=2)
    with pytest.raises(TrainError, match=r"^step 2 gives a loss of nan"):
        trained(toml)
    with opened(toml, resume=True) as run:
        assert run.done == 2
        assert all(bool(torch.isfinite(kinds["p"]).all()) for _, kinds in run.state())


def test_a_step_without_any_target_is_refused_with_its_rows(tmp_path) -> None:
    toml = prepare(tmp_path, data_labels="labels.npy")
    labels = write(tmp_path, "labels", seed=2)
    labels[4:8, 1:] = -100  # the first label of a row is nobody's target
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(TrainError, match=r"^step 1 has no target: rows 4, 5, 6, 7 have no label but -100$") as found:
        trained(toml)
    assert found.value.code == "train/no-targets"
    labels[4, 1] = 5
    np.save(tmp_path / "labels.npy", labels)
    shutil.rmtree(tmp_path / "store")
    assert len(trained(toml)[0]) == 4


# damage


def test_a_digest_sees_pages_that_changed_places_and_adds_up_from_stretches() -> None:
    flat = torch.randint(-(2**31), 2**31 - 1, (5 * PAGE // 4 + 77,), dtype=torch.int32)
    whole = digest(flat, 3 * PAGE)
    cut = 2 * PAGE // 4
    assert whole == (digest(flat[:cut], 3 * PAGE) + digest(flat[cut:], 5 * PAGE)) % (1 << 64)
    assert whole != digest(flat, 2 * PAGE)
    swapped = flat.clone()
    swapped[: PAGE // 4], swapped[PAGE // 4 : PAGE // 2] = flat[PAGE // 4 : PAGE // 2], flat[: PAGE // 4]
    assert digest(swapped, 3 * PAGE) != whole
    assert digest_of_sums(swapped, 3 * PAGE) == digest_of_sums(flat, 3 * PAGE)
    for at in random.Random(4).sample(range(len(flat)), 20):
        changed = flat.clone()
        changed[at] ^= 1 << 9
        assert digest(changed, 3 * PAGE) != whole
    assert digest(flat[:3], 0) == sum(int(n) % 2**32 << 32 * (k % 2) for k, n in enumerate(flat[:3])) % (1 << 64)


def test_a_flipped_bit_of_frozen_parameters_is_found(tmp_path) -> None:
    toml = prepare(tmp_path, lora_rank=2)
    trained(toml, 2)
    path = tmp_path / "store/frozen.bin"
    raw = path.read_bytes()
    places = [at for at in range(0, len(raw), 911) if raw[at]]
    for at in random.Random(1).sample(places, 6):
        flipped = bytearray(raw)
        flipped[at] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(TrainError, match=r"frozen.bin holds other frozen parameters of block") as found:
            opened(toml, resume=True)
        assert found.value.code == "train/damaged"
    path.write_bytes(raw)
    assert len(trained(toml, resume=True)[0]) == 2


def test_pages_of_a_store_that_changed_places_are_found(tmp_path) -> None:
    toml = prepare(tmp_path)
    trained(toml, 2)
    path = tmp_path / "store/layers.bin"
    raw = bytearray(path.read_bytes())
    raw[PAGE : 2 * PAGE], raw[2 * PAGE : 3 * PAGE] = raw[2 * PAGE : 3 * PAGE], raw[PAGE : 2 * PAGE]
    path.write_bytes(raw)
    with pytest.raises(TrainError, match=r"holds another p of block"):
        trained(toml, resume=True)


def test_a_flipped_digit_of_a_manifest_is_found(tmp_path) -> None:
    toml = prepare(tmp_path)
    trained(toml, 2)
    path = tmp_path / "store/manifest.json"
    text = path.read_text()
    state = text.index('"state"')
    places = [at for at, letter in enumerate(text) if letter.isdigit() and at > state]
    for at in random.Random(2).sample(places, 25):
        changed = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
        if json.loads(changed) == json.loads(text):
            continue  # the last digit of a number may say the same one
        path.write_text(changed)
        with pytest.raises(RunError) as found:
            opened(toml, resume=True).close()
        assert found.value.code == "run/state-damaged", text[at - 20 : at + 5]
        assert "manifest.copy.json" in found.value.hint
        assert not found.value.hint.startswith("to start afresh")
    shutil.copy(tmp_path / "store/manifest.copy.json", path)  # as the hint says
    assert path.read_text() == text
    assert len(trained(toml, resume=True)[0]) == 2


def as_before(store, run):
    """The manifest as the version before digests by page wrote it, by that version's identity of the run."""
    path = store / "manifest.json"
    kept = json.loads(path.read_text())
    kept.pop("digest")
    kept["state"].pop("frozen", None)
    kept["state"].pop("by_page", None)
    kept["state"]["run"] = json.loads(run)["before"]
    path.write_text(json.dumps(kept))
    (store / "manifest.copy.json").unlink()


@pytest.mark.parametrize("keep", ["disk", "memory"])
def test_a_store_of_the_version_before_is_gone_on_with_and_guarded(keep, tmp_path, monkeypatch) -> None:
    toml = prepare(tmp_path, run_keep=keep, model_frozen=["*up_proj*"])
    whole = trained(toml)
    shutil.rmtree(tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr("fairlead.train.disk.digest", digest_of_sums)
        patch.setattr("fairlead.train.snapshots.Snapshots._all.__kwdefaults__", {"way": digest_of_sums})
        with opened(toml) as run:
            list(run.train(2))
            identity = run.engine.settings.run
    as_before(tmp_path / "store", identity)
    with opened(toml, resume=True) as run:
        assert run.done == 2
        list(run.train(1))
    losses, state = trained(toml, resume=True)
    assert losses == whole[0][3:]
    assert same(state, whole[1])
    if keep == "disk":
        path = tmp_path / "store/frozen.bin"
        raw = bytearray(path.read_bytes())
        raw[next(at for at, byte in enumerate(raw) if byte)] ^= 1
        path.write_bytes(raw)
        with pytest.raises(TrainError, match=r"other frozen parameters"):
            opened(toml, resume=True)


# what a run is of

CHANGES = {
    "optimizer.lr was 0.001 and is 0.01": {"optimizer_lr": 0.01},
    "optimizer.clip was 1.0 and is 0.5": {"optimizer_clip": 0.5},
    "run.accumulation was 2 and is 4": {"run_accumulation": 4},
    "run.steps was 4 and is 8": {"run_steps": 8},
    "data.order was file and is shuffled": {"data_order": "shuffled"},
    "memory.head_tokens was 0 and is 4": {"memory_head_tokens": 4},
    "data.labels was not there": {"data_labels": "labels.npy"},
    "data.attention_mask was not there": {"data_attention_mask": "mask.npy"},
    "data.position_ids was not there": {"data_position_ids": "positions.npy"},
    "lora.rank was not there": {"lora_rank": 2},
    "data.tokens has other contents": {"data_tokens": "others.npy"},
    "model.frozen was () and is": {"model_frozen": ["*norm*"]},
    "the model's config.json has other contents": {},
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    toml = prepare(folder)
    write(folder, "labels", seed=3)
    write(folder, "mask", fill=1)
    np.save(folder / "positions.npy", np.tile(np.arange(12), (16, 1)))
    write(folder, "others", seed=9)
    trained(toml, 1)
    return folder


@pytest.mark.parametrize("said", CHANGES)
def test_what_a_run_is_not_of_any_more_is_named(said, begun, tmp_path) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    toml = prepare(tmp_path, **CHANGES[said])
    if not CHANGES[said]:
        path = tmp_path / "model/config.json"
        shape = json.loads(path.read_text())
        path.write_text(json.dumps(shape | {"rms_norm_eps": 0.01}))
    with pytest.raises(TrainError) as found:
        opened(toml, resume=True).close()
    assert found.value.code == "train/other-run"
    assert said in found.value.message


def test_what_may_change_does_not_stop_a_run(begun, tmp_path) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    shutil.move(tmp_path / "tokens.npy", tmp_path / "moved.npy")
    toml = prepare(tmp_path, data_tokens="moved.npy", run_save_every=2, memory_slots=2)
    assert len(trained(toml, resume=True)[0]) == 3


def test_large_files_are_told_apart_by_stretches(tmp_path, monkeypatch) -> None:
    from fairlead.train import identity

    monkeypatch.setattr(identity, "_WHOLE", 1 << 12)
    monkeypatch.setattr(identity, "_STRETCH", 1 << 8)
    monkeypatch.setattr(identity, "_STRETCHES", 16)
    path = tmp_path / "large"
    raw = bytearray(random.Random(1).randbytes(50_001))
    path.write_bytes(raw)
    first = identity._of_file(path)
    for at in (0, 255, len(raw) - 1, len(raw) - 256):
        raw[at] ^= 1
        path.write_bytes(raw)
        assert identity._of_file(path) != first, at
        raw[at] ^= 1
    path.write_bytes(raw + b"x")
    assert identity._of_file(path) != first
    path.write_bytes(raw)
    assert identity._of_file(path) == first


# what is lost


@pytest.mark.parametrize("keep", ["disk", "memory"])
def test_a_lost_manifest_deletes_nothing(keep, tmp_path) -> None:
    toml = prepare(tmp_path, run_keep=keep, run_save_every=1)
    trained(toml, 2)
    store = tmp_path / "store"
    (store / "manifest.json").unlink()
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    for resume in (False, True):
        with pytest.raises(TrainError, match=r"its manifest.json is gone") as found:
            opened(toml, resume=resume)
        assert found.value.code == "train/manifest-lost"
        assert f"cp {store / 'manifest.copy.json'} {store / 'manifest.json'}" in found.value.hint
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before
    shutil.copy(store / "manifest.copy.json", store / "manifest.json")
    assert len(trained(toml, resume=True)[0]) == 2


def test_the_metrics_of_a_run_are_not_anothers(tmp_path) -> None:
    one = prepare(tmp_path)
    trained(one, 2)
    before = (tmp_path / "metrics.jsonl").read_text()
    two = prepare(tmp_path, "two.toml", run_store="store2", optimizer_lr=5e-3)
    with pytest.raises(TrainError, match=r"holds the steps of the run in .*store") as found:
        trained(two, 1)
    assert found.value.code == "train/metrics-taken"
    assert (tmp_path / "metrics.jsonl").read_text() == before
    assert not (tmp_path / "store2").exists()
    prepare(tmp_path, "two.toml", run_store="store2", optimizer_lr=5e-3, run_metrics="store2.jsonl")
    trained(two, 1)
    trained(one, resume=True)
    assert steps_told(tmp_path) == [0, 1, 2, 3]
    assert steps_told(tmp_path, "store2.jsonl") == [0]


def test_metrics_go_with_a_store_that_was_moved_and_end_with_one_that_was_removed(tmp_path) -> None:
    toml = prepare(tmp_path)
    trained(toml, 2)
    (tmp_path / "store").rename(tmp_path / "moved")
    toml = prepare(tmp_path, run_store="moved")
    trained(toml, 1, resume=True)
    assert steps_told(tmp_path) == [0, 1, 2]
    shutil.rmtree(tmp_path / "moved")
    trained(prepare(tmp_path), 1)
    assert steps_told(tmp_path) == [0]


def test_a_busy_store_is_named(tmp_path) -> None:
    toml = prepare(tmp_path)
    with opened(toml) as run:
        list(run.train(1))
        with pytest.raises(FairleadError, match=r"another run of fairlead is at work on .*store") as found:
            opened(toml, resume=True)
    assert found.value.exit == Exit.RETRY
