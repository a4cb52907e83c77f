"""A run from a configuration: begun, stopped, gone on with, exported; from and to checkpoints as they are published."""

from __future__ import annotations

import errno
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from fairlead.cli.train import estimate as estimate_verb  # noqa: E402
from fairlead.errors import SpecError, TrainError  # noqa: E402
from fairlead.train import disk, rate  # noqa: E402
from fairlead.train.blobs import BlobFile  # noqa: E402
from fairlead.train.config import load  # noqa: E402
from fairlead.train.named import active_params  # noqa: E402
from fairlead.train.planning import estimate  # noqa: E402
from fairlead.train.session import Session  # noqa: E402
from support.families import config as tiny  # noqa: E402
from support.training import train_plainly  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

STEPS = 4
TEXT = """
[model]
path = "model"
compute = "fp32"

[data]
tokens = "tokens.npy"
order = "shuffled"

[run]
steps = 4
rows = 2
accumulation = 2
seed = 7

[optimizer]
lr = 1e-3
warmup = 2
schedule = "linear"
clip = 0.05
"""


@pytest.fixture
def tmp_path(tmp_path):
    """In memory where there is such a place: these runs write much, and what a disk does is test_disk.py's subject."""
    if not os.access("/dev/shm", os.W_OK):
        return (yield tmp_path)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
    return None


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(disk, "PIECE", 4096)
    monkeypatch.setattr("fairlead.train.plan._BUFFERS", 4 * 4 * 4096 * disk.AHEAD)


def prepare(folder, family="llama", text=TEXT):
    """A model directory in several files, tokens, and a configuration."""
    torch.manual_seed(5)
    net = AutoModelForCausalLM.from_config(tiny(family), dtype=torch.float32)
    with torch.no_grad():
        for name, buffer in net.named_buffers():
            if "correction" in name:
                buffer.uniform_(-0.01, 0.01)
    net.save_pretrained(folder / "model", max_shard_size="20KB")
    tokens = np.random.default_rng(1).integers(3, 90, (11, 12), np.int64)
    np.save(folder / "tokens.npy", tokens)
    (folder / "train.toml").write_text(text)
    return net


def losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def opened(folder, **words):
    return Session.open(load(folder / "train.toml"), folder, **words)


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_slow_disk_is_named_as_what_binds(tmp_path, monkeypatch, way) -> None:
    prepare(tmp_path)
    quick = getattr(BlobFile, way)

    def slow(self, *args):
        time.sleep(0.1)
        return quick(self, *args)

    with opened(tmp_path) as run:
        monkeypatch.setattr(BlobFile, way, slow)
        *_, last = run.train(2)
    name, share = last.bound
    assert name == "the disk"
    assert share > 0.5
    bound = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["bound"]
    assert bound == {"by": name, "share": share}


def test_waiting_for_what_lies_outside_the_layers_and_for_gradients_to_leave_is_told(tmp_path, monkeypatch) -> None:
    prepare(tmp_path)
    with opened(tmp_path) as run:
        home, write = run.engine.homes[0], BlobFile.write
        load, gradients = home.load, run.engine.homes[1].gradients

        def slow_load(weights):
            time.sleep(1.0)
            load(weights)

        def slow_write(self, *args):
            if self is gradients:
                time.sleep(1.0)
            return write(self, *args)

        *_, before = run.train(2)
        monkeypatch.setattr(home, "load", slow_load)
        (loading,) = run.train(1)
        monkeypatch.setattr(home, "load", load)
        monkeypatch.setattr(BlobFile, "write", slow_write)
        (writing,) = run.train(1)
    before, loading, writing = (one.result.seconds for one in (before, loading, writing))
    assert min(loading["loading"] - before["loading"], loading["waited"] - before["waited"]) > 0.5
    assert min(writing["writing"] - before["writing"], writing["waited"] - before["waited"]) > 0.5


@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "qwen3_moe", "deepseek_v3", "phi3", "gpt2", "opt"])
def test_from_a_checkpoint_to_a_checkpoint(family, tmp_path) -> None:
    net = prepare(tmp_path, family)
    with opened(tmp_path) as run:
        list(run.train())
        batches = [run.tokens.step(step) for step in range(STEPS)]
        rates = [run.rate(step) for step in range(STEPS)]
        groups = run.config.groups
        run.export(tmp_path / "out")
    first = {name: param.detach() for name, param in net.named_parameters()}
    buffers = {name: value for name, value in net.named_buffers() if "correction" in name}
    plain = train_plainly(
        net.config,
        first,
        batches,
        rates,
        dtype=torch.float32,
        clip=0.05,
        seed=7,
        groups=groups,
        betas=(0.9, 0.95),
        buffers=buffers,
    )
    assert losses(tmp_path) == plain[0]
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert {name for name, param in back.named_parameters() if not torch.equal(param, plain[2][name][0])} == set()
    for name, value in buffers.items():
        assert torch.equal(back.get_buffer(name), value)
    before = set(json.loads((tmp_path / "model/model.safetensors.index.json").read_text())["weight_map"])
    after = set(json.loads((tmp_path / "out/model.safetensors.index.json").read_text())["weight_map"])
    assert after == before


def test_stopped_and_gone_on_with(tmp_path) -> None:
    prepare(tmp_path)
    with opened(tmp_path) as run:
        assert [progress.result.step for progress in run.train(STEPS)] == [0, 1, 2, 3]
    whole = losses(tmp_path)
    (tmp_path / "store").rename(tmp_path / "before")
    with opened(tmp_path) as run:
        list(run.train(2))
    with opened(tmp_path, resume=True) as run:
        assert run.done == 2
        list(run.train(1))
    (tmp_path / "metrics.jsonl").write_text(
        "\n".join((tmp_path / "metrics.jsonl").read_text().splitlines()[:2]) + '\n{"st'
    )
    with opened(tmp_path, resume=True) as run:  # its last line was lost, half a line came after
        list(run.train())
    assert losses(tmp_path) == whole


@pytest.mark.parametrize("keep", ["disk", "memory"])
def test_a_trace_holds_every_visit_of_the_schedule_in_its_order(keep, tmp_path) -> None:
    prepare(tmp_path, text=TEXT.replace("[run]", f'[run]\nkeep = "{keep}"'))
    with opened(tmp_path) as run:
        with run.traced(tmp_path / "trace.json"):
            list(run.train(2))
        schedule = run.engine._schedule
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = [event for event in events if event["ph"] == "X"]
    assert all(span["dur"] >= 0 for span in spans)

    def of(row):
        return [span for span in spans if rows[span["tid"]] == row]

    visits = [(f"{'forward' if v.forward else 'backward'} of block {v.block + 1}") for v in schedule.visits]
    assert [span["name"] for span in of("computing")] == visits * 2
    loads = [f"block {v.block + 1} into slot {v.slot}" for v in schedule.visits if v.load]
    assert [span["name"] for span in of("weights in")] == loads * 2
    for row in ("computing", "weights in"):
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in itertools.pairwise(of(row)))
    assert bool(of("updates")) is (keep == "memory")
    first_in, first_use = of("weights in")[0], of("computing")[0]
    assert first_in["ts"] + first_in["dur"] <= first_use["ts"] + 1


@pytest.mark.parametrize("keep", ["disk", "memory"])
def test_where_the_state_is_kept_changes_nothing(keep, tmp_path) -> None:
    prepare(tmp_path)
    with opened(tmp_path) as run:
        list(run.train())
        whole = {name: {kind: t.clone() for kind, t in kinds.items()} for name, kinds in run.state()}
    told = losses(tmp_path)
    (tmp_path / "store").rename(tmp_path / "before")
    (tmp_path / "train.toml").write_text(TEXT.replace("[run]", f'[run]\nkeep = "{keep}"\nsave_every = 2'))
    with opened(tmp_path) as run:
        steps = run.train()
        for _ in range(3):
            next(steps)
    with opened(tmp_path, resume=True) as run:  # the third step was not saved from memory
        assert run.done == (2 if keep == "memory" else 3)
        list(run.train())
        state = dict(run.state())
    assert losses(tmp_path) == told
    assert [name for name in whole if any(not torch.equal(whole[name][k], state[name][k]) for k in "pmv")] == []


@pytest.mark.parametrize("fits", ["both", "disk alone"])
def test_the_planner_places_the_state_and_a_run_goes_on_where_it_is(fits, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.train.measure._SAMPLE", 1 << 12)
    monkeypatch.setattr("fairlead.train.measure._SECONDS", 0.001)
    budget = 1.0
    if fits == "disk alone":
        prepare(tmp_path, text=TEXT + "\n[memory]\nhost_gib = 1\n")
        needs = [
            estimate(load(written(tmp_path, keep, 1)), tmp_path).need.total("host") / 2**30
            for keep in ("disk", "memory")
        ]
        assert needs[0] < needs[1]
        budget = sum(needs) / 2
    prepare(tmp_path, text=TEXT)
    written(tmp_path, "auto", budget)
    plan = estimate(load(tmp_path / "train.toml"), tmp_path)
    assert plan.why
    if fits == "disk alone":
        assert plan.settings.store is not None
        assert plan.why == "it does not fit in memory"
    with opened(tmp_path) as run:
        kept = "memory" if run.engine.store is None else "disk"
        assert fits == "both" or kept == "disk"
        list(run.train(2))
    with opened(tmp_path, resume=True) as run:
        assert (run.engine.store is None) is (kept == "memory")
        assert run.done == 2
        list(run.train())
    told = losses(tmp_path)
    (tmp_path / "store").rename(tmp_path / "before")
    (tmp_path / "train.toml").write_text(TEXT)
    with opened(tmp_path) as run:
        list(run.train())
    assert losses(tmp_path) == told


def written(folder, keep, budget):
    """A configuration that keeps its state there, within a budget of host memory."""
    path = folder / "train.toml"
    path.write_text(
        TEXT.replace("[run]", f'[run]\nkeep = "{keep}"\nsave_every = 1') + f"\n[memory]\nhost_gib = {budget}\n"
    )
    return path


def test_a_snapshot_that_was_killed_or_damaged(tmp_path, monkeypatch) -> None:
    prepare(tmp_path, text=TEXT.replace("[run]", '[run]\nkeep = "memory"\nsave_every = 1'))
    with opened(tmp_path) as run:
        list(run.train(2))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", broken)
            with pytest.raises(TrainError, match="cannot be written"):
                next(run.train())
    with opened(tmp_path, resume=True) as run:
        assert run.done == 2
    newest = tmp_path / "store" / "snapshot-1.bin"
    raw = bytearray(newest.read_bytes())
    raw[4096 * 3 + 5] ^= 1
    newest.write_bytes(raw)
    with pytest.raises(TrainError, match="holds another state of block 0"):
        opened(tmp_path, resume=True)


def broken(_handle):
    raise OSError(errno.EIO, "broken")


def test_the_rest_is_refused_by_name(tmp_path) -> None:
    prepare(tmp_path)
    with pytest.raises(TrainError, match="holds no run to go on with"):
        opened(tmp_path, resume=True)
    with opened(tmp_path) as run:
        list(run.train(1))
    with pytest.raises(TrainError, match="already holds a run"):
        opened(tmp_path)
    (tmp_path / "train.toml").write_text(TEXT.replace("lr = 1e-3", "lr = 1e-4"))
    with pytest.raises(TrainError, match="other hyper-parameters"):
        opened(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("break_it", "code", "what"),
    [
        (lambda at: (at / "model/config.json").unlink(), "train/model", "is no model directory"),
        (lambda at: (at / "model/model.safetensors.index.json").unlink(), "train/weights", "no safetensors weights"),
        (
            lambda at: next((at / "model").glob("*2-of*.safetensors")).write_bytes(b"x"),
            "train/weights",
            "does not read",
        ),
        (lambda at: np.save(at / "tokens.npy", np.zeros(3)), "train/data", "must be whole numbers"),
        (lambda at: (at / "tokens.npy").write_bytes(b"no"), "train/data", "does not read"),
        (
            lambda at: (at / "train.toml").write_text(TEXT + '\n[memory]\ndevice = "cuda:7"'),
            "train/device",
            "no device cuda:7",
        ),
    ],
)
def test_what_cannot_be_used_is_said(break_it, code, what, tmp_path) -> None:
    prepare(tmp_path)
    break_it(tmp_path)
    with pytest.raises(TrainError, match=what) as found:
        opened(tmp_path)
    assert found.value.code == code


def test_what_does_not_fit_is_told_by_the_estimate_and_refused_before_anything_is_made(tmp_path) -> None:
    prepare(tmp_path, text=TEXT + "\n[memory]\nhost_gib = 0.01\n")
    plan = estimate(load(tmp_path / "train.toml"), tmp_path)
    assert plan.settings.slots == 1
    assert plan.shortfall is not None
    assert "more host memory" in plan.shortfall.message
    with pytest.raises(TrainError, match="more host memory"):
        opened(tmp_path)
    assert not (tmp_path / "store").exists()
    (tmp_path / "train.toml").write_text(TEXT + "\n[memory]\nhost_gib = 1\n")
    assert estimate(load(tmp_path / "train.toml"), tmp_path).shortfall is None


def test_an_estimate_that_is_a_guess_says_so_and_why_in_text_and_json(tmp_path) -> None:
    """JetMoE's experts ask how many tokens each got: a model without memory cannot tell."""
    prepare(tmp_path, "jetmoe")
    said = estimate_verb(tmp_path / "train.toml")
    assert "as the model could not be played (NotImplementedError: Cannot copy out of meta tensor" in said.text
    assert "computing: a layer that goes back, or the loss (a guess)" in said.text
    assert said.body["guessed"].startswith("NotImplementedError")
    guesses = {term["what"] for term in said.body["terms"] if term["guessed"]}
    assert guesses == {
        "inputs of layers, until backward",
        "logits and what else the head keeps",
        "computing: a layer that goes back, or the loss",
    }
    refused = TEXT.replace("rows = 2", "rows = 8192") + "\n[memory]\nhost_gib = 0.001\n"
    (tmp_path / "train.toml").write_text(refused)
    assert ", guessed " in estimate(load(tmp_path / "train.toml"), tmp_path).shortfall.message


def test_an_estimate_of_a_model_that_can_be_played_holds_no_guess(tmp_path) -> None:
    prepare(tmp_path)
    said = estimate_verb(tmp_path / "train.toml")
    assert "guess" not in said.text
    assert said.body["guessed"] == ""
    assert not any(term["guessed"] for term in said.body["terms"])


def test_a_missing_weight_is_named(tmp_path) -> None:
    prepare(tmp_path)
    path = tmp_path / "model/model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["model.layers.2.mlp.up_proj.weight"]
    path.write_text(json.dumps(index))
    with pytest.raises(TrainError, match=r"model\.layers\.2\.mlp\.up_proj\.weight is missing"):
        opened(tmp_path)


def test_every_problem_of_a_configuration_is_told_with_its_line(tmp_path) -> None:
    (tmp_path / "train.toml").write_text("[run]\nsteps = 0\n[optimizer]\nwarmup = 9\nlearning_rate = 1\n")
    with pytest.raises(SpecError) as found:
        load(tmp_path / "train.toml")
    said = [(problem.line, problem.message) for problem in found.value.problems]
    assert {line for line, _ in said} >= {2, 5}
    assert any("model.path" in message for _, message in said)
    assert any("data.tokens" in message for _, message in said)


def test_random_first_weights_masks_and_labels(tmp_path) -> None:
    text = TEXT.replace('path = "model"', 'path = "model"\ninit = "random"\nfrozen = ["*embed*"]')
    text = text.replace('order = "shuffled"', 'order = "file"\nattention_mask = "mask.npy"')
    prepare(tmp_path, text=text)
    mask = np.ones((11, 12), np.int64)
    mask[:, 9:] = 0
    np.save(tmp_path / "mask.npy", mask)
    with opened(tmp_path) as run:
        first = dict(run.state())["model.embed_tokens.weight"]["p"].clone()
        steps = list(run.train(2))
        batch = run.tokens.step(0)[0]
        assert torch.equal(dict(run.state())["model.embed_tokens.weight"]["p"], first)
    assert bool((batch["labels"][:, 9:] == -100).all())
    assert torch.equal(batch["labels"][:, :9], batch["input_ids"][:, :9])
    assert [step.tokens for step in steps] == [4 * 9] * 2


def test_packed_texts_do_not_see_each_other(tmp_path) -> None:
    prepare(tmp_path, text=TEXT.replace('order = "shuffled"', 'order = "file"\nposition_ids = "positions.npy"'))
    positions = np.tile(np.concatenate([np.arange(5), np.arange(7)]), (11, 1))
    np.save(tmp_path / "positions.npy", positions)
    with opened(tmp_path) as run:
        first = next(run.train(1)).result.loss
    tokens = np.load(tmp_path / "tokens.npy")
    tokens[:, 2] = (tokens[:, 2] + 1) % 90  # what stands before a text decides nothing in it
    np.save(tmp_path / "tokens.npy", tokens)
    labels = np.where(positions < 1, -100, tokens)
    labels[:, :5] = -100
    (tmp_path / "store").rename(tmp_path / "before")
    np.save(tmp_path / "labels.npy", labels)
    config = (tmp_path / "train.toml").read_text()
    (tmp_path / "train.toml").write_text(config.replace("[run]", 'labels = "labels.npy"\n[run]'))
    losses_of = []
    for change in (0, 3):
        tokens[:, 1] = (tokens[:, 1] + change) % 90
        np.save(tmp_path / "tokens.npy", tokens)
        with opened(tmp_path) as run:
            losses_of.append(next(run.train(1)).result.loss)
        (tmp_path / "store").rename(tmp_path / f"after-{change}")
    assert losses_of[0] == losses_of[1] != first


def test_the_same_samples_that_plain_training_would_take(tmp_path) -> None:
    prepare(tmp_path)
    with opened(tmp_path) as run:
        first, second = run.tokens.step(0), run.tokens.step(1)
    order = np.random.default_rng([7, 0]).permutation(11)
    stored = np.load(tmp_path / "tokens.npy")
    drawn = np.concatenate([batch["input_ids"].numpy() for batch in (*first, *second)])
    assert np.array_equal(drawn, stored[order[:8]])


def test_each_epoch_has_each_sample_once_and_its_own_order(tmp_path) -> None:
    prepare(tmp_path)
    with opened(tmp_path) as run:
        tokens = run.tokens
        drawn = [tokens._sample(place) for place in range(33)]
    assert [sorted(drawn[at : at + 11]) for at in (0, 11, 22)] == [list(range(11))] * 3
    assert drawn[:11] != drawn[11:22]
    assert tokens._sample(3) == drawn[3]


def test_active_parameters_of_experts(tmp_path) -> None:
    from fairlead.train import skeleton, take_apart

    model = skeleton(tiny("qwen3_moe"), torch.float32)
    parts = take_apart(model, ())
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts" in name)
    rest = sum(p.numel() for name, p in model.named_parameters() if ".experts" not in name and "embed" not in name)
    assert active_params(parts) == rest + experts // 2


def test_the_rate_of_a_session_is_the_configurations(tmp_path) -> None:
    prepare(tmp_path)
    with opened(tmp_path) as run:
        assert [run.rate(step) for step in range(4)] == [rate("linear", 1e-3, step, 4, 2) for step in range(4)]
