"""A slow device, emulated by a process that is let run a tenth of the time: measured, and named by the judge."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.verdict import Verdict
from support.rank_facts import of, ranks

pytestmark = [pytest.mark.real, pytest.mark.requires("torch")]

PROGRAM = textwrap.dedent(
    """
    import json, sys, torch
    from fairlead.preflight.ranks.onnode.device import Card
    torch.set_num_threads(1)
    Card(torch, "cpu", lambda: None, is_gpu=False).measure()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(Card(torch, "cpu", lambda: None, is_gpu=False).measure()), flush=True)
    """
)


def measured(*, held: bool) -> dict[str, float]:
    """What a process measures of itself; `held` lets it run 5 ms and holds it 45 ms, in turn."""
    words = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("\n")
        child.stdin.flush()
        while held and not select.select([child.stdout], [], [], 0)[0]:
            child.send_signal(signal.SIGSTOP)
            time.sleep(0.045)
            child.send_signal(signal.SIGCONT)
            time.sleep(0.005)
        found: dict[str, float] = json.loads(child.stdout.readline())
        return found


def test_the_slow_one_of_eight_is_named_by_index_pci_and_uuid():
    """Shown as GPUs: what is judged is the spread of the rates, whatever their unit."""
    facts = ranks(2, 4)
    well, slow = measured(held=False), measured(held=True)
    for rank in range(8):
        of(facts, rank, "card").update(slow if rank == 6 else well)
    found = [f for f in judge_ranks(facts, {}, Wanted()) if f.code == "preflight/slow-gpu"]
    assert [(f.verdict, str(f.subject)) for f in found] == [(Verdict.FAIL, "n1 GPU 2 0002:00:00.0 GPU-n1-2")]
    assert "matrix rate" in found[0].message


def test_all_of_it_takes_less_than_two_seconds():
    assert measured(held=False)["took_s"] < 2.0
