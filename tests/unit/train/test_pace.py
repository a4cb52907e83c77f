"""What a step computes is what torch's own counter counts; what binds it follows from rates."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from fairlead.train import Settings, skeleton, take_apart  # noqa: E402
from fairlead.train.activations import Work, play  # noqa: E402
from fairlead.train.layout import Named, ParamGroup, block  # noqa: E402
from fairlead.train.measure import rates  # noqa: E402
from fairlead.train.pace import Rates, Share, computing_s, pace, reached  # noqa: E402
from support.families import config  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

RATES = Rates(
    product_s={(8, 4, 2): 1e-3},
    attention_flops=1e6,
    moved_bytes_s=1e6,
    call_s=1e-5,
    draw_s=1e-8,
    update_s=1e-6,
    update_cpu_s=2e-6,
    block_s=0.01,
    load_s=1e-7,
    keep_s=1e-7,
    commit_s=0.02,
    read_bytes_s=2e6,
    write_bytes_s=1e6,
    processors=4,
    threads=2,
    is_host=True,
)
BLOCKS = [block(i, str(i), [Named("w", "w", (100_352,), i)], (ParamGroup("*", 0.0),)) for i in range(3)]


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_the_work_is_what_torch_counts_in_real_training_with_recompute(family) -> None:
    shape = config(family)
    shape._attn_implementation = "eager"  # products of attention are seen one by one on both sides
    played = play(take_apart(skeleton(shape, torch.float32), ()), torch.float32, 2, 16, 0).work
    net = transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.float32, attn_implementation="eager").train()
    net.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(3, 90, (2, 16))
    with FlopCounterMode(display=False) as counter:
        net(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert played.flop == counter.get_total_flops()
    assert played.attention_flop == 0
    assert played.moved_bytes > 0


def test_attention_of_kernels_counts_as_its_products_do() -> None:
    shape = config("llama")
    shape._attn_implementation = "sdpa"
    fused = play(take_apart(skeleton(shape, torch.float32), ()), torch.float32, 2, 16, 0, device="cuda").work
    shape = config("llama")
    shape._attn_implementation = "eager"
    eager = play(take_apart(skeleton(shape, torch.float32), ()), torch.float32, 2, 16, 0).work
    products = 2 * 2.0 * 2 * shape.num_attention_heads * 16 * 16 * shape.head_dim * shape.num_hidden_layers
    assert fused.attention_flop == products * (2 + 2.5)  # forward twice; backward computes the scores once more
    assert eager.flop - (fused.flop - fused.attention_flop) == products * (2 + 2)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_with_dropout_is_no_fused_kernel_on_a_cpu_and_draws(dropout: float) -> None:
    """As torch's own counter sees it: products one by one there, where flash attention has one operation."""
    shape = config("llama")
    shape._attn_implementation, shape.attention_dropout = "sdpa", dropout
    played = play(take_apart(skeleton(shape, torch.float32), ()), torch.float32, 2, 16, 0).work
    net = transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.float32, attn_implementation="sdpa").train()
    net.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(3, 90, (2, 16))
    with FlopCounterMode(display=False) as counter:
        net(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    scores = 2 * shape.num_attention_heads * 16 * 16 * shape.num_hidden_layers
    assert played.drawn == (2 * scores if dropout else 0)  # forward, and once more before backward
    assert bool(played.attention_flop) == (not dropout)
    if dropout:
        assert played.flop == counter.get_total_flops()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_experts_are_played_in_every_type(dtype: torch.dtype) -> None:
    shape = config("mixtral")
    shape._experts_implementation = "grouped_mm"
    found = play(take_apart(skeleton(shape, dtype), ()), dtype, 2, 16, 0)
    assert not found.guessed
    each = 2 * 16 * shape.num_experts_per_tok // shape.num_local_experts
    inner = shape.intermediate_size
    num = shape.num_hidden_layers * shape.num_local_experts
    products = found.work.products
    assert products[each, shape.hidden_size, 2 * inner] == products[each, inner, shape.hidden_size] == 2 * num
    assert products[shape.hidden_size, each, 2 * inner] == products[inner, each, shape.hidden_size] == num


def test_times_add_up() -> None:
    work = Work(attention_flop=2e4, moved_bytes=5000, calls=300, drawn=200_000)
    work.products[8, 4, 2] = 3
    work.products[16, 4, 2] = 1  # not measured: by the rate of those that were
    assert computing_s(work, RATES) == pytest.approx(3e-3 + 2e-3 + 0.02 + 0.005 + 0.003 + 0.002)


def test_the_busiest_resource_binds() -> None:
    work = Work(moved_bytes=1_000_000)
    share = Share(2, BLOCKS, 4 * BLOCKS[1].numel)
    one = pace(work, BLOCKS, share, RATES, on_disk=True, width=2)
    trained = sum(each.trained for each in BLOCKS)
    store = trained * 1e-6 + 3 * 0.01 + 4 * BLOCKS[1].numel * 1e-7 + trained * 1e-7 + 0.02
    sums = trained * (2 * (2 + 4 + 4) + 4) / 1e6  # of two micro-batches, in fp32; read once for norms
    assert one.bounds["computing"] == pytest.approx(2.02 + sums)
    assert one.bounds["the disk"] == pytest.approx(store)
    assert one.bounds["processors, for computing and updates"] == pytest.approx(
        ((2 + sums) * 2 + trained * 2e-6) / 4 + 0.02
    )
    assert (one.binding, one.seconds) == ("computing", one.bounds["computing"])
    slow = dataclasses.replace(RATES, update_s=1e-4)
    assert pace(work, BLOCKS, share, slow, on_disk=True, width=2).binding == "the disk"
    few = dataclasses.replace(RATES, processors=1)
    assert pace(work, BLOCKS, share, few, on_disk=True, width=2).binding.startswith("processors")
    apart = pace(work, BLOCKS, share, dataclasses.replace(RATES, is_host=False), on_disk=False, width=2)
    assert set(apart.bounds) == {"computing", "updates", "the bus"}


def test_a_rank_updates_its_own_blocks_and_shares_its_node_with_others() -> None:
    work = Work(moved_bytes=1_000_000)
    alone = Share(4, BLOCKS, 0, (10_000_000, 4_000_000))
    first = Share(2, BLOCKS[::2], BLOCKS[2].numel, (8_000_000, 3_000_000), on_node=2)
    one, two = (pace(work, BLOCKS, share, RATES, on_disk=True, width=4).bounds for share in (alone, first))
    assert "the disk that 2 ranks share" not in one
    assert two["the disk that 2 ranks share"] == pytest.approx(2 * (8 / 2 + 3 / 1) + 0.02)
    own = sum(each.trained for each in BLOCKS[::2])
    assert two["the disk"] == pytest.approx(own * 1e-6 + 2 * 0.01 + BLOCKS[2].numel * 1e-7 + own * 1e-7 + 0.02)
    sums = sum(each.trained for each in BLOCKS) * (2 * (4 + 8) + 4) / 1e6  # of all blocks, by every rank
    assert two["computing"] == pytest.approx(2 * 1.0 + sums + 0.02)
    assert two["processors, for computing and updates"] == pytest.approx(2 * ((2.0 + sums) * 2 + own * 2e-6) / 4 + 0.02)


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_machine_is_measured_and_nothing_is_left(on_disk, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.train.measure._SAMPLE", 1 << 16)
    monkeypatch.setattr("fairlead.train.measure._SECONDS", 0.01)
    work = Work()
    work.products[64, 32, 16] = 2
    settings = Settings(torch.device("cpu"), torch.bfloat16, store=Path("store") if on_disk else None)
    found = rates(settings, work, 16, 64, tmp_path)
    assert set(found.product_s) == {(64, 32, 16)}
    positive = [
        found.attention_flops,
        found.moved_bytes_s,
        found.call_s,
        found.update_cpu_s,
        found.load_s,
        found.keep_s,
    ]
    assert min(positive) > 0
    assert (found.commit_s > 0) is on_disk
    assert math.isinf(found.read_bytes_s) is math.isinf(found.write_bytes_s) is not on_disk
    assert min(found.read_bytes_s, found.write_bytes_s) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_step_is_bound_by_what_was_busiest() -> None:
    spent = {"forward": 2.0, "backward": 6.0, "update": 1.0, "loading": 5.2, "writing": 2.0, "waited": 3.0}
    assert reached(spent, 8.0, on_disk=True, is_host=True) == ("the disk", pytest.approx(0.9))
    spent |= {"waited": 0.4}
    assert reached(spent, 8.0, on_disk=True, is_host=True) == ("computing", pytest.approx(0.95))
    assert reached(spent, 8.0, on_disk=True, is_host=False) == ("the disk", pytest.approx(0.9))  # a GPU's is not seen
    spent |= {"update": 7.9}
    assert reached(spent, 8.0, on_disk=False, is_host=True) == ("updates", pytest.approx(7.9 / 8))
