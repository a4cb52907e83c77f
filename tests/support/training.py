"""Plain training, as everyone writes it: the whole model in memory. What streaming must equal to the bit."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from fairlead.train import Engine, ParamGroup, Settings, seed_of, skeleton, take_apart
from fairlead.train.layout import group_of
from fairlead.train.rounding import put_rounded, stream

GROUPS = (ParamGroup("*bias", 0.0), ParamGroup("*norm*", 0.0), ParamGroup("*", 0.1))
CPU = torch.device("cpu")


def first_weights(config, adapt=lambda net: net):
    torch.manual_seed(11)
    net = adapt(AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    return {name: param.detach().float().clone() for name, param in net.named_parameters()}


def micro_batches(vocab, *, steps, accumulation, rows=2, seq=16):
    generator = torch.Generator().manual_seed(3)
    drawn = [
        [torch.randint(0, vocab, (rows, seq), generator=generator) for _ in range(accumulation)] for _ in range(steps)
    ]
    return [[{"input_ids": ids, "labels": ids} for ids in step] for step in drawn]


def train_plainly(
    config,
    first,
    data,
    rates,
    *,
    dtype,
    clip,
    seed,
    groups=GROUPS,
    frozen=(),
    betas=(0.9, 0.999),
    buffers=None,
    sgd=None,
    adapt=lambda net: net,
    parameters=torch.float32,
):
    """Losses, norms, and {name: (p, m, v)}; m and v are None where a parameter never had a gradient.

    With bf16 parameters each is rounded by chance after the update of all of it.
    """
    net = adapt(AutoModelForCausalLM.from_config(config, dtype=dtype)).train()
    masters = {
        name: torch.nn.Parameter(first[name].to(parameters).float().clone()) for name, _ in net.named_parameters()
    }
    put(net, masters)
    for name, value in (buffers or {}).items():
        net.get_buffer(name).copy_(value)
    by_group = {}
    for name, param in net.named_parameters():
        param.requires_grad_(name not in frozen)
        if name not in frozen:
            by_group.setdefault(group_of(name, groups), []).append(masters[name])
    by_rule = [
        {"params": params, "weight_decay": group.weight_decay, "scale": group.lr_scale}
        for group, params in by_group.items()
    ]
    if sgd is None:
        optimizer = torch.optim.AdamW(by_rule, betas=betas, fused=True)
    else:
        optimizer = torch.optim.SGD(by_rule, lr=1.0, fused=True, **sgd)
    losses, norms = [], []
    for step, batches in enumerate(data):
        targets = sum(int((batch["labels"][..., 1:] != -100).sum()) for batch in batches)
        total = None
        for micro, batch in enumerate(batches):
            torch.manual_seed(seed_of(seed, step, micro))
            loss = net(**batch, use_cache=False, num_items_in_batch=targets).loss
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
            for name, param in net.named_parameters():
                if param.grad is not None:
                    master, gradient = masters[name], param.grad.float()
                    master.grad = gradient.clone() if master.grad is None else master.grad + gradient
                    param.grad = None
        norms.append(float(torch.nn.utils.clip_grad_norm_(masters.values(), clip or float("inf"))))
        losses.append(float(total))
        for group in optimizer.param_groups:
            group["lr"] = rates[step] * group["scale"]
        optimizer.step()
        if parameters != torch.float32:
            round_by_chance({n: p for n, p in masters.items() if p.grad is not None}, seed_of(seed, step, 0))
        optimizer.zero_grad()
        put(net, masters)
    states = {
        name: (
            master.detach(),
            optimizer.state[master].get("exp_avg", optimizer.state[master].get("momentum_buffer")),
            optimizer.state[master].get("exp_avg_sq"),
        )
        for name, master in masters.items()
    }
    return losses, norms, states


@torch.no_grad()
def round_by_chance(masters, draw):
    for name, master in masters.items():
        rounded = torch.empty(master.numel(), dtype=torch.bfloat16)
        put_rounded(master.flatten().clone(), rounded, stream(draw, name), 0)
        master.copy_(rounded.view(master.shape))


@torch.no_grad()
def put(net, masters):
    for name, param in net.named_parameters():
        param.copy_(masters[name])


def train_streamed(
    config, first, data, rates, *, seed, groups=GROUPS, frozen=(), adapt=lambda net: net, most=0, ends=False, **settings
):
    """The same by the engine, and the engine's results."""
    dtype = settings.setdefault("dtype", torch.float32)
    model = adapt(skeleton(config, dtype))
    for name, param in model.named_parameters():
        param.requires_grad_(name not in frozen)
    engine = Engine(take_apart(model, groups, most, ends=ends), Settings(CPU, accumulation=len(data[0]), **settings))
    try:
        engine.fill(first.items())
        results = [engine.step(batches, lr=rate, seed=seed) for batches, rate in zip(data, rates, strict=True)]
        states = {name: {kind: t.clone() for kind, t in kinds.items()} for name, kinds in engine.state().items()}
    finally:
        engine.close()
    return results, states


def unequal(plain, streamed):
    """Names of tensors that differ in a bit."""
    found = []
    for name, (p, m, v) in plain.items():
        kinds = streamed[name]
        if not torch.equal(p, kinds["p"]):
            found.append(f"{name}: p")
        if m is not None and not torch.equal(m, kinds["m"]):
            found.append(f"{name}: m")
        if v is not None and not torch.equal(v, kinds["v"]):
            found.append(f"{name}: v")
    return found


def compare(
    config,
    *,
    steps=3,
    accumulation=2,
    dtype=torch.float32,
    clip=0.5,
    groups=GROUPS,
    frozen=(),
    adapt=lambda net: net,
    **settings,
):
    """Both ways from the same beginning: (what differs, the engine's results)."""
    first = first_weights(config, adapt)
    data = micro_batches(config.vocab_size, steps=steps, accumulation=accumulation)
    rates = [1e-3 * min(1.0, (step + 1) / 3) for step in range(steps)]
    both = {"dtype": dtype, "clip": clip, "seed": 7, "groups": groups, "frozen": frozen, "adapt": adapt}
    losses, norms, plain = train_plainly(config, first, data, rates, **both)
    results, streamed = train_streamed(config, first, data, rates, **both, **settings)
    wrong = unequal(plain, streamed)
    wrong += [
        f"step {r.step}: loss {r.loss!r} {loss!r}" for r, loss in zip(results, losses, strict=True) if r.loss != loss
    ]
    wrong += [
        f"step {r.step}: norm {r.grad_norm!r} {n!r}" for r, n in zip(results, norms, strict=True) if r.grad_norm != n
    ]
    return wrong, results
