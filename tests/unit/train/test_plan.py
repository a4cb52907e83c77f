"""What a run will take is known before it begins, and what does not fit is refused by name."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fairlead.errors import TrainError  # noqa: E402
from fairlead.train import Settings, activations, estimate, load, skeleton, take_apart  # noqa: E402
from fairlead.train.activations import play  # noqa: E402
from fairlead.train.config import Config, Data, Memory, Model, Run  # noqa: E402
from fairlead.train.layout import ParamGroup  # noqa: E402
from fairlead.train.named import model_of, parts_of  # noqa: E402
from fairlead.train.placement import Way, choose, most  # noqa: E402
from fairlead.train.plan import check, need  # noqa: E402
from fairlead.train.planning import fitted  # noqa: E402
from fairlead.train.team import Planned  # noqa: E402
from support.families import FAMILIES, config  # noqa: E402
from support.train_peak import SHAPES  # noqa: E402
from support.training import GROUPS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

CPU = torch.device("cpu")


def needed(**settings):
    parts = take_apart(skeleton(config("llama"), torch.float32), GROUPS)
    found = play(parts, torch.float32, 2, 16, settings.get("head_tokens", 0))
    return need(parts.blocks, Settings(CPU, **{"store": Path("store"), **settings}), found, tokens=32, active=1000)


def measured(name, tmp_path):
    script = Path(__file__).parents[2] / "support" / "train_peak.py"
    done = subprocess.run(
        [sys.executable, script, name, tmp_path], capture_output=True, text=True, timeout=240, check=True
    )
    said, took = map(int, done.stdout.split()[-2:])
    return said / took


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "llama, deep"])
def test_the_peak_is_what_the_plan_says(name, tmp_path) -> None:
    assert measured(name, tmp_path) == pytest.approx(1.0, abs=0.10)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pieces", "whole"])
def test_a_wide_layer_takes_what_the_plan_says(way, tmp_path) -> None:
    """Of a piece that is one matrix, the norm's fp32 is what a step has most of at once: the plan had not known it."""
    script = Path(__file__).parents[3] / "bench" / "train_wide.py"
    command = [sys.executable, script, "--hidden", "3072", "--only", way, "--store", tmp_path / "store"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    found = json.loads(done.stdout)
    assert found["step_peak_gib"] == pytest.approx(found["planned_step_gib"], rel=0.10)
    assert max(found["fill_peak_gib"], found["step_peak_gib"]) <= found["planned_gib"]


@pytest.mark.slow
def test_many_layers_and_micro_batches_take_no_more_than_the_plan_says(tmp_path) -> None:
    """Tensors of some hundred KiB had lain about freed: more than twice the plan."""
    assert measured("llama, deep", tmp_path) > 0.98


def test_the_script_that_holds_plans_beside_runs_makes_all_its_shapes(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "bench")
    script = importlib.import_module("train_plan")
    for name, (*_, words, compute, keep) in {**script.UNSEEN, **script.KNOWN}.items():
        folder = script.prepare(name, tmp_path / name, small=False)
        found = load(folder / "train.toml")
        assert (found.model.compute, found.run.keep, found.memory.ends) == (compute, keep, words[-1])
    assert estimate(found, folder).shortfall is None


@pytest.mark.parametrize(("vocabulary", "inner", "head"), [(4096, 48, True), (96, 2048, False)])
def test_heads_of_micro_batches_meet_each_other_but_no_layer(vocabulary, inner, head) -> None:
    shape = config("llama", vocab_size=vocabulary, intermediate_size=inner)
    parts = take_apart(skeleton(shape, torch.float32), GROUPS)
    one, two, three = (play(parts, torch.float32, 2, 16, 0, micro) for micro in (1, 2, 3))
    assert bool(two.head) is head
    inputs = 2 * 16 * 32 * 4
    assert one.inputs == two.inputs == three.inputs == inputs
    logits = 2 * 16 * vocabulary * 4
    if head:
        assert two.head == 2 * three.head // 3 >= 2 * logits
    else:  # a layer goes back for one micro-batch at a time; outputs of one wait, and gradients of inputs of all
        assert 0 < three.computing - two.computing < two.computing / 2


@pytest.mark.parametrize(
    ("disk", "memory", "chosen", "why"),
    [
        (Way(True, 10.0), Way(True, 9.0), "memory", "9.00 s from memory"),
        (Way(True, 10.0), Way(True, 9.8), "disk", "every step is committed"),
        (Way(True, 10.0), Way(False, 1.0), "disk", "does not fit in memory"),
        (Way(False, 10.0), Way(True, 20.0), "memory", "does not fit on the store's disk"),
        (Way(False, 10.0), Way(False, 1.0), "disk", "does not fit in memory"),
        (Way(True, None), Way(True, None), "memory", "is not known"),
    ],
)
def test_the_state_lives_where_it_fits_and_a_step_is_quicker_for_it(disk, memory, chosen, why) -> None:
    keep, said = choose(disk, memory)
    assert keep == chosen
    assert why in said


@pytest.mark.parametrize("limit", range(8))
def test_as_many_layers_stay_as_fit(limit) -> None:
    assert most(5, lambda num: num <= limit) == min(5, limit)


def test_a_layer_that_stays_moves_its_state_from_the_host_to_the_device() -> None:
    parts = take_apart(skeleton(config("llama"), torch.bfloat16), GROUPS)
    found = play(parts, torch.bfloat16, 2, 16, 0)

    def held(*stays: int):
        settings = Settings(GPU, torch.bfloat16, on_device=frozenset(stays))
        return need(parts.blocks, settings, found, tokens=32, active=1000)

    none, one, all_ = held(), held(1), held(1, 2, 3, 4)
    layer = parts.blocks[1]
    assert layer.numel == layer.trained
    assert one.total("device") - none.total("device") == (2 + 4 + 8 + 2) * layer.numel
    assert none.total("host") - one.total("host") == (4 + 8 + 2) * layer.numel
    assert one.total("disk") == none.total("disk")
    slots = {term.what: term.bytes for term in all_.terms if term.tier == "device" and "slots" in term.what}
    assert slots == {"weights of layers, slots: 0": 0}


def test_what_was_played_is_not_played_again_unless_something_differs(monkeypatch) -> None:
    parts = [take_apart(skeleton(config("llama", num_hidden_layers=1), torch.float32), GROUPS) for _ in range(2)]
    first = play(parts[0], torch.float32, 3, 7, 0)
    with monkeypatch.context() as patch:
        patch.setattr(activations, "_played", None)
        assert play(parts[1], torch.float32, 3, 7, 0) is first
    assert play(parts[1], torch.float32, 3, 8, 0) != first
    frozen = take_apart(parts[1].model, (ParamGroup("*mlp*", 0.0, trainable=False), *GROUPS))
    assert play(frozen, torch.float32, 3, 7, 0) != first


def test_of_many_micro_batches_four_are_played() -> None:
    parts = take_apart(skeleton(config("llama", vocab_size=4096), torch.float32), GROUPS)
    real = activations._played(parts, torch.float32, 1, 16, 0, 6, "cpu")
    told = play(parts, torch.float32, 1, 16, 0, 6)
    most_at_once = 6 * (told.inputs * 4 + told.shared) + told.head + told.computing
    assert most_at_once == pytest.approx(max(real.most.values()), rel=0.02)


def test_fewer_slots_and_pieces_of_the_head_need_less() -> None:
    three, one = needed(slots=3), needed(slots=1)
    assert three.total("host") > one.total("host")
    assert three.total("disk") == one.total("disk")
    assert needed(head_tokens=4).total("host") < three.total("host")
    assert one.read_bytes > three.read_bytes


def test_what_does_not_fit_is_refused_with_the_shortfall() -> None:
    found = needed()
    check(found, {"host": found.total("host"), "disk": found.total("disk")})
    with pytest.raises(TrainError, match=r"needs 3\d(\.\d+)? MiB more host memory: .*pieces of the store") as refused:
        check(found, {"host": found.total("host") - (1 << 25)})
    assert refused.value.code == "train/too-little-memory"


def test_state_in_memory_needs_memory_and_two_snapshots() -> None:
    here, there = needed(store=None, snapshots=Path("store")), needed()
    state = there.total("disk") - sum(term.bytes for term in there.terms if term.what == "spare slots")
    of_store, of_snapshot = (sum(t.bytes for t in f.terms if "pieces of" in t.what) for f in (there, here))
    assert (of_store, of_snapshot) == (64 << 20, 16 << 20)
    assert here.total("host") - of_snapshot == there.total("host") - of_store + state
    assert here.read_bytes == here.written_bytes == 0


def test_a_gpu_has_memory_of_its_own() -> None:
    parts = take_apart(skeleton(config("llama"), torch.bfloat16), GROUPS)
    found = play(parts, torch.bfloat16, 2, 16, 0)
    on_gpu = need(parts.blocks, Settings(GPU, torch.bfloat16, store=Path("store")), found, tokens=32, active=1000)
    assert on_gpu.total("device") > 0
    assert not any("slots" in term.what for term in on_gpu.terms if term.tier == "host")


GPU = torch.device("cuda", 0)


def played(shape, tokens, **settings):
    parts = take_apart(skeleton(shape, torch.bfloat16), GROUPS)
    made = Settings(GPU, torch.bfloat16, store=Path("store"), **settings)
    found = play(parts, torch.bfloat16, tokens // 2048, 2048, made.head_tokens)
    return need(parts.blocks, made, found, tokens=tokens, active=1000)


def llama(**more):
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000}
    return transformers.LlamaConfig(**{**sizes, "num_hidden_layers": 4, "max_position_embeddings": 4096, **more})


def test_depth_adds_inputs_of_layers_to_the_device_and_nothing_else() -> None:
    flat = []
    for layers in (4, 8):
        terms = played(llama(num_hidden_layers=layers), 8192, head_tokens=1024).terms
        flat.append(sum(t.bytes for t in terms if t.tier == "device" and not t.what.startswith("inputs")))
    assert flat[1] == pytest.approx(flat[0], rel=0.01)


def test_a_layer_of_175b_shape_trains_within_35_gib() -> None:
    wide = transformers.OPTConfig(
        hidden_size=12288,
        word_embed_proj_dim=12288,
        ffn_dim=49152,
        num_hidden_layers=2,
        num_attention_heads=96,
        vocab_size=512,
        dropout=0.0,
    )
    assert played(wide, 8192, slots=2).total("device") < 35 * 2**30


def test_a_vocabulary_of_262_thousand_never_has_all_its_logits() -> None:
    many = llama(vocab_size=262_144, hidden_size=256, intermediate_size=512, num_attention_heads=4)
    logits = 16_384 * 262_144 * 4
    assert played(many, 16_384, head_tokens=512).total("device") < logits / 4
    assert played(many, 16_384).total("device") > logits


# fmt: off
SEVERAL_KINDS = (
    "cohere2", "deepseek_v2", "deepseek_v3", "gemma2", "gemma3n_text", "glm4_moe", "gpt_neo", "gpt_oss", "lfm2",
    "llama4_text", "olmo3", "qwen3_next",
)
# fmt: on
"""Families whose layers are not all alike; of the others one layer stands for all, and takes a fourth of the time."""


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_can_be_played_without_memory(family) -> None:
    shape = config(family) if family in SEVERAL_KINDS else config(family, num_hidden_layers=1)
    parts = take_apart(skeleton(shape, torch.bfloat16), GROUPS)
    small, large = (play(parts, torch.bfloat16, rows, 16, 0) for rows in (1, 4))
    assert large.inputs == 4 * small.inputs > 0
    assert large.computing > small.computing > 0


def test_an_estimate_of_ranks_is_of_one_that_needs_most(tmp_path) -> None:
    """With few large blocks the first rank may own the least of the state."""
    config("llama", vocab_size=512).save_pretrained(tmp_path)
    asked = Config(
        model=Model(path=".", init="random"),
        data=Data(text="t.jsonl", length=16),
        run=Run(rows=1, accumulation=8),
        memory=Memory(device="cpu", ends="stream"),
    )
    each = [
        fitted(asked, tmp_path, parts_of(asked, model_of(asked, tmp_path)), 16, team=Planned(8, 8, CPU, rank)).need
        for rank in range(8)
    ]
    found = estimate(asked, tmp_path, ranks=8).need
    assert each[0].total("disk") < found.total("disk") == max(need.total("disk") for need in each)
