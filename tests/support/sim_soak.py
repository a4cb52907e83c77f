"""Small simulations drawn from a seed: any fabric, transport and load, and faults of every kind that are all repaired.

`check` says what must hold of each. As a program it plays a range of seeds and says which went wrong:

    PYTHONPATH=tests python -m support.sim_soak 0 300
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

import numpy as np

from fairlead.errors import FairleadError
from fairlead.fabric.mrc.rows import Endpoint, place
from fairlead.fabric.sim.engine import layout as at
from support.sim_runs import Played, fingerprint, play_out, under_way

UNTIL_US = 60_000  # timeouts back off: a flow that was silent through several faults may wait some ms more


@dataclass(frozen=True)
class Fabric:
    """A fabric as text, and how many there are of its parts."""

    text: str
    planes: int
    t0: int
    t1: int
    nics: int
    is_tree: bool = False


def drawn(seed: int) -> str:
    """A scenario as text."""
    rng = random.Random(seed)
    fabric = _fabric(rng)
    kind = rng.choice(["mrc", "mrc", "uec", "roce", "pfc"])
    transport = "roce" if kind == "pfc" else kind
    lines = [fabric.text, f'[transport]\nkind = "{transport}"\n']
    if transport == "roce":
        lines.append(f"timeout_us = {rng.choice([100, 300])}\ndcqcn = {rng.choice(['true', 'false'])}\n")
    else:
        paths = rng.choice(['""', '""', '"oblivious"', '"bitmap"', '"reps"'])
        lines.append(f'paths = {paths}\ncongestion = "{rng.choice(["nscc", "nscc", "constant"])}"\n')
        lines.append(rng.choice(["", "", "evs = 16\n", "announce_ports = false\n", 'routing = "hash"\n']))
    if kind == "pfc":
        lines.append("[queues]\npfc = true\n" + rng.choice(["", "xoff_bytes = 9000\n"]))
    else:
        lines.append(f"[queues]\ntrim = {rng.choice(['true', 'true', 'false'])}\nsize_bdp = {rng.choice([0, 0.3])}\n")
    lines += [_traffic(rng, fabric.nics) for _ in range(rng.choice([1, 1, 2]))]
    hashed = fabric.is_tree or transport != "mrc" or any("hash" in line for line in lines)
    lines += [_fault(rng, fabric, hashed) for _ in range(rng.randint(1, 6))]
    return "".join(lines) + f"[run]\nuntil_us = {UNTIL_US}\nseed = {rng.randrange(1 << 30)}\n"


def _fabric(rng: random.Random) -> Fabric:
    hosts = rng.choice([2, 4, 8])
    links = rng.choice([
        "", "", "[links]\nhost_latency_ns = 300\nfabric_latency_ns = 1000\n",
        "[links]\nhost_gbps = 400\nfabric_gbps = 100\n", "[links]\nswitch_latency_ns = 500\n",
    ])  # fmt: skip
    if rng.random() < 0.25:
        t0, t1 = 2, rng.choice([1, 2])
        text = f'[topology]\nkind = "fat-tree"\npods = 2\nt0 = {t0}\nt1 = {t1}\ncores = {2 * t1}\n'
        return Fabric(f"{text}hosts_per_t0 = {hosts}\n{links}", 1, 2 * t0, 2 * t1, 2 * t0 * hosts, is_tree=True)
    planes, t0, t1 = rng.choice([1, 2, 2, 4, 4]), rng.choice([4, 8]), rng.choice([1, 2, 4])
    text = f"[topology]\nplanes = {planes}\nt0 = {t0}\nt1 = {t1}\nhosts_per_t0 = {hosts}\n"
    return Fabric(f"{text}links_per_pair = {rng.choice([1, 1, 2])}\n{links}", planes, t0, t1, t0 * hosts)


def _traffic(rng: random.Random, nics: int) -> str:
    size = rng.choice([1, 5000, 60_000, 250_000])
    return "[[traffic]]\n" + rng.choice([
        f'kind = "permutation"\nsize_bytes = {size}\nqps = {rng.choice([1, 3])}\n',
        f'kind = "incast"\nto = {rng.randrange(nics)}\nsize_bytes = {size // 3 + 1}\n',
        f'kind = "send-recv"\nsize_bytes = {size}\nmessages = 3\n',
        f'kind = "ring-all-reduce"\nsize_bytes = {4 * size}\nnics = "0-7"\n',
        f'kind = "tree-all-reduce"\nsize_bytes = {size}\n',
        f'kind = "all-to-all"\nsize_bytes = {size // 8 + 1}\nnics = "0-7"\n',
        f'kind = "training"\nsize_bytes = {size}\nnics = "0-7"\nsteps = 2\ncompute_us = 20\ncompute_jitter = 0.2\n',
    ])  # fmt: skip


def _fault(rng: random.Random, fabric: Fabric, hashed: bool) -> str:
    begin = rng.uniform(0, 60)
    until = begin + rng.choice([0.5, 3, 20, 100, 300])
    flap = rng.choice(["", "", f"flap_us = {rng.choice([1, 2.5, 7])}\n"])
    flap += rng.choice(["", f"reroute_us = {rng.choice([0.5, 10])}\n"]) if hashed else ""
    nic, t0, t1 = rng.randrange(fabric.nics), rng.randrange(fabric.t0), rng.randrange(fabric.t1)
    one_way = rng.choice(["up", "down"])
    kinds = [
        f'kind = "port"\nnic = {nic}\n{flap}',
        f'kind = "t0"\nt0 = {t0}\n{flap}',
        f'kind = "t1"\nt1 = {t1}\n{flap}',
        f'kind = "loss"\nloss = {rng.choice([0.01, 0.2, 1.0])}\n',
        f'kind = "loss"\nnic = {nic}\nloss = {rng.choice([0.05, 0.5])}\ndirection = "{one_way}"\n',
        f'kind = "slow"\nnic = {nic}\nrate = {rng.choice([0.05, 0.5])}\n',
        f'kind = "slow"\nt1 = {t1}\nrate = 0.1\n',
    ]
    if not fabric.is_tree or t0 // 2 == t1 // (fabric.t1 // 2):  # in one pod
        kinds.append(f'kind = "link"\nt0 = {t0}\nt1 = {t1}\n{flap}')
    if not hashed:
        share = rng.choice([0.2, 1.0])
        kinds.append(f'kind = "paths"\nnics = "0-{fabric.nics // 2}"\nt1s = "{t1}"\nloss = {share}\n')
    what = rng.choice(kinds)
    one_plane = '"port"' in what or '"t0"' in what or rng.random() < 0.7  # a NIC without ports is the end of its flows
    place = f"plane = {rng.randrange(fabric.planes)}\n" if one_plane else ""
    return f"[[fault]]\nat_us = {begin:.2f}\nuntil_us = {until:.2f}\n{place}{what}"


def check(played: Played) -> None:
    """After the last repair everything is complete, or its queue pair says why not; the fabric is whole and empty."""
    c, tables, setup = played.results.counters, played.world.tables, played.setup
    left = under_way(played)
    assert c.sent_by_nics == c.delivered + c.dropped + c.lost + c.refused + left
    messages, is_failed = tables["messages"], _failed_flows(played)
    unfinished = messages[messages[:, at.MS_ACKED] < 0]
    explained = is_failed[unfinished[:, at.MS_FLOW]] | (unfinished[:, at.MS_WAIT] > 0)
    assert explained.all(), f"{(~explained).sum()} messages are not complete, and nothing says why"
    if not is_failed.any():
        assert not len(unfinished)
    assert tables["goodput"].sum() == tables["receivers"][:, at.RC_BYTES].sum()
    ports = tables["ports"]
    assert (ports[:, at.PT_LOSS] == 0).all()
    assert (ports[:, at.PT_STATE] & at.PORT_DOWN == 0).all()
    assert (ports[:, at.PT_STATE] >> at.PORT_SCALE_SHIFT == 0).all()
    assert (tables["nics"][:, at.NC_PORTS] == (1 << setup.shape.planes) - 1).all()
    assert (tables["nics"][:, at.NC_EV_LOSS] == 0).all()
    assert played.world.w[at.W_DOWN] == played.world.w[at.W_REROUTED] == 0
    if is_failed.any():
        return  # the other end of a queue pair that failed may ask for ever
    assert (ports[:, [at.PT_DATA_BYTES, at.PT_CONTROL_BYTES, at.PT_INGRESS]] == 0).all()
    assert (ports[:, at.PT_SERVING] == -1).all()
    assert (ports[:, at.PT_STATE] & ~at.PORT_SERVES_CONTROL == 0).all()
    assert (tables["nics"][:, [at.NC_PAUSED, at.NC_CONTROL]] == 0).all()
    thread = tables["threads"][0]
    assert thread[at.TH_PLACES + at.ST_FRESH] == thread[at.TH_PLACES + at.ST_FREE]  # no place in the pool is lost
    assert left == 0


def _failed_flows(played: Played) -> np.ndarray:
    """Whether either end of each flow is in the error state."""
    tables, state = played.world.tables, played.world.state
    flows = tables["flows"]
    failed = np.zeros(len(flows), dtype=bool)
    if not played.setup.options.roce:
        for i, flow in enumerate(flows):
            ends = (state.tx(i), state.rx(int(flow[at.FL_RECEIVER])))
            failed[i] = any(state.m[end + place(Endpoint, "error")] for end in ends)
    return failed


def play_and_check(seed: int) -> Played:
    """One seed, with one thread and with two."""
    text = drawn(seed)
    played = play_out(text)
    check(played)
    assert fingerprint(play_out(text, threads=2)) == fingerprint(played)
    return played


if __name__ == "__main__":
    from fairlead.fabric.sim import runner

    runner.PARALLEL_SECONDS = 0.0  # wake the second thread for every window
    wrong = 0
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            play_and_check(number)
        except (AssertionError, FairleadError) as error:  # the next seed is played all the same
            wrong += 1
            print(number, repr(error), flush=True)
    print(f"{wrong} went wrong")
