"""Parameters in bf16, rounded by chance: without bias, with the same bits however they are cut, kept or shared."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.errors import SpecError, TrainError  # noqa: E402
from fairlead.train import Engine, Settings, disk, optimizer, seed_of, skeleton, take_apart  # noqa: E402
from fairlead.train.config import load  # noqa: E402
from fairlead.train.layout import Named, ParamGroup, block  # noqa: E402
from fairlead.train.optimizer import SGD, Moment, update  # noqa: E402
from fairlead.train.planning import estimate  # noqa: E402
from fairlead.train.rounding import numbers, put_rounded, stream  # noqa: E402
from fairlead.train.session import Session  # noqa: E402
from support.families import config as tiny  # noqa: E402
from support.train_ranks import on_ranks, train_engine  # noqa: E402
from support.training import GROUPS, first_weights, micro_batches, train_plainly, unequal  # noqa: E402
from unit.train.test_session import TEXT, losses, prepare  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

CPU, BF16 = torch.device("cpu"), torch.bfloat16


def test_numbers_are_those_of_splitmix64() -> None:
    """The outputs for seed 1234567 that implementations of SplitMix64 are compared by (rosettacode.org)."""
    found = [int(number) % (1 << 64) for number in numbers(1234567, 0, 5, CPU)]
    assert found == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert torch.equal(numbers(1234567, 3, 2, CPU), numbers(1234567, 0, 5, CPU)[3:])


def rounded(wide, seed=5, begin=0):
    into = torch.empty(len(wide), dtype=BF16)
    put_rounded(wide.clone(), into, seed, begin)
    return into


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.93])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_part_that_is_cut_off_is_how_often_it_is_rounded_up(part, sign) -> None:
    num, ulp = 1 << 18, 2.0**-7
    found = rounded(torch.full((num,), sign * (1.0 + part * ulp))).float() * sign
    assert set(found.unique().tolist()) <= {1.0, 1.0 + ulp}
    bound = 5 * (part * (1 - part) / num) ** 0.5 + 2.0**-16  # five standard deviations; fp32 has 16 bits of the part
    assert float((found > 1.0).double().mean()) == pytest.approx(part, abs=bound)


def test_what_bf16_can_say_stays_and_what_is_no_number_stays_none() -> None:
    exact = torch.randn(4096, generator=torch.Generator().manual_seed(1)).to(BF16)
    assert torch.equal(rounded(exact.float()), exact)
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0])
    odd = torch.cat([odd, torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)])  # NaN, all bits
    found = rounded(odd)
    assert found[:2].tolist() == [torch.inf, -torch.inf]
    assert found.isnan().tolist() == [False, False, True, False, False, True, True]
    assert torch.signbit(found[3:5]).tolist() == [False, True]


def test_updates_too_small_for_bf16_add_up_without_bias() -> None:
    """1.0 and a rate of 1e-5: rounded to the nearest, every update is lost and the mean stays 1."""
    num, steps, lr = 1 << 16, 400, 1e-5
    one = block(0, "x", [Named("w", "w", (num,), 0)], (ParamGroup("*", 0.0),))
    p, g = torch.ones(num, dtype=BF16), torch.ones(num)
    m, v = torch.zeros(num), torch.zeros(num)
    assert float((p - lr).float().mean()) == 1.0
    for step in range(steps):
        update(one, p, m, v, g, Moment(lr, 1.0, SGD(), {"w": step + 1}, seed_of(3, step, 0)))
    bound = 5 * (steps * lr * 2.0**-8 / num) ** 0.5  # a step's rounding has a variance below lr times the distance
    assert bound < steps * lr / 30
    assert float(p.double().mean()) == pytest.approx(1.0 - steps * lr, abs=bound)


def test_pieces_and_stretches_have_the_bits_of_the_whole(monkeypatch) -> None:
    one = block(0, "x", [Named("u", "u", (999,), 0), Named("w", "w", (37, 41), 1)], (ParamGroup("*", 0.1),))
    generator = torch.Generator().manual_seed(0)
    first, g = (torch.randn(one.numel, generator=generator) for _ in range(2))
    moment = Moment(1e-3, 0.5, optimizer.AdamW(), {"u": 1, "w": 1}, 17)

    def updated(stretch):
        arenas = first.to(BF16), torch.zeros(one.trained), torch.zeros(one.trained)
        for begin in range(0, one.trained, stretch):
            update(one, *(a[begin : begin + stretch] for a in (*arenas, g)), moment, begin=begin)
        return arenas

    whole = updated(one.trained)
    monkeypatch.setitem(optimizer.NARROW_PIECE, "cpu", 256)
    for stretch in (one.trained, 768):
        assert all(map(torch.equal, whole, updated(stretch)))
    assert len({stream(1, "a"), stream(2, "a"), stream(1, "b")}) == 3


def trained(folder=None, *, steps=4, stop_after=None, clip=0.5, on_device=frozenset()):
    """What differs from plain training with the same rounding; stopped with updates still due, and gone on with."""
    shape = tiny("llama")
    first, data = first_weights(shape), micro_batches(shape.vocab_size, steps=steps, accumulation=2)
    words = {"dtype": BF16, "clip": clip, "seed": 7, "parameters": BF16}
    told, norms, plain = train_plainly(shape, first, data, [1e-3] * steps, **words)
    parts = take_apart(skeleton(shape, BF16), GROUPS)
    made = Settings(CPU, BF16, BF16, accumulation=2, clip=clip, store=folder, on_device=on_device)
    engine = Engine(parts, made)
    engine.fill(first.items())
    results = []
    for step, batches in enumerate(data):
        if step == stop_after:
            engine.close()
            engine = Engine(parts, made)
            assert engine.steps == step
        results.append(engine.step(batches, lr=1e-3, seed=7))
    wrong = unequal(plain, engine.state())
    engine.close()
    assert [(r.loss, r.grad_norm) for r in results] == list(zip(told, norms, strict=True))
    return wrong


def test_in_memory_it_is_plain_training_with_the_same_rounding() -> None:
    assert trained() == []
    assert trained(clip=None, steps=2, on_device=frozenset({1})) == []


def test_a_store_goes_on_with_the_bits_of_updates_that_were_due(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(disk, "PIECE", 4096)
    assert trained(tmp_path / "store", stop_after=2) == []


@pytest.mark.slow
def test_ranks_have_the_bits_of_one_host(tmp_path) -> None:
    words = {"family": "llama", "dtype": "bfloat16", "clip": 0.5, "steps": 3, "parameters": "bfloat16"}
    assert on_ranks(2, train_engine, tmp_path, **words) == [0, 0]
    shape = tiny("llama")
    data = micro_batches(shape.vocab_size, steps=3, accumulation=4)
    rates = [1e-3 * min(1.0, (step + 1) / 3) for step in range(3)]
    told = {"dtype": BF16, "clip": 0.5, "seed": 7, "parameters": BF16}
    plain = train_plainly(shape, first_weights(shape), data, rates, **told)
    for rank in range(2):
        assert not unequal(plain[2], torch.load(tmp_path / f"rank-{rank}.pt")[1])


NARROW = TEXT.replace('compute = "fp32"', 'compute = "bf16"\nparameters = "bf16"').replace("clip = 0.05", "clip = 0.5")
MEMORY = NARROW.replace("[run]", '[run]\nkeep = "memory"\nsave_every = 1')


def run(folder, *, steps=None, resume=False):
    with Session.open(load(folder / "train.toml"), folder, resume=resume) as session:
        list(session.train(steps))
        return {name: kinds["p"].clone() for name, kinds in session.state()}


def test_a_run_from_a_file_is_the_same_on_disk_in_memory_and_gone_on_with(tmp_path) -> None:
    ends = []
    for name, text, stop in (("disk", NARROW, None), ("memory", MEMORY, 2)):
        (tmp_path / name).mkdir()
        prepare(tmp_path / name, text=text)
        if stop:
            run(tmp_path / name, steps=stop)
        ends.append((run(tmp_path / name, resume=bool(stop)), losses(tmp_path / name)))
    (one, told), (other, told_too) = ends
    assert told == told_too
    assert all(torch.equal(other[name], p) for name, p in one.items())
    assert all(torch.equal(p, p.to(BF16).float()) for p in one.values())
    for name in ("disk", "memory"):
        config = tmp_path / name / "train.toml"
        config.write_text(config.read_text().replace('parameters = "bf16"', ""))
        with pytest.raises(TrainError) as refused:
            run(tmp_path / name, resume=True)
        assert refused.value.code == "train/other-run"


def test_the_estimate_counts_two_bytes_less_a_parameter(tmp_path) -> None:
    prepare(tmp_path, text=NARROW)
    plans = {}
    for keep in ("disk", "memory"):
        for text in (NARROW, NARROW.replace('parameters = "bf16"', "")):
            (tmp_path / "train.toml").write_text(text.replace("[run]", f'[run]\nkeep = "{keep}"'))
            plans[keep, text == NARROW] = estimate(load(tmp_path / "train.toml"), tmp_path)
    for keep, tier in (("disk", "disk"), ("memory", "host")):
        narrow, wide = plans[keep, True], plans[keep, False]
        sizes = [{t.what: t.bytes for t in plan.need.terms if t.tier == tier} for plan in (narrow, wide)]
        assert sizes[0]["parameters and moments"] * 12 == sizes[1]["parameters and moments"] * 10
        assert narrow.need.total("disk") < wide.need.total("disk")
    assert plans["disk", True].need.written_bytes < plans["disk", False].need.written_bytes


def test_computing_in_fp32_with_bf16_parameters_is_refused(tmp_path) -> None:
    prepare(tmp_path, text=NARROW.replace('compute = "bf16"', 'compute = "fp32"'))
    with pytest.raises(SpecError, match='needs `compute = "bf16"`'):
        load(tmp_path / "train.toml")
