"""A node that is slow and one that is only busy are told apart by what the kernel counts."""

from __future__ import annotations

import os
import signal

import pytest

from fairlead.preflight.pairs.onnode.working import fixed_work, throttled_ns, waited_ns

V1 = "nr_periods 2\nnr_throttled 1\nthrottled_time 74531461\n"
V2 = "usage_usec 5\nnr_periods 2\nnr_throttled 1\nthrottled_usec 74531\n"


def spin() -> int:
    pid = os.fork()
    if not pid:
        while True:
            pass
    return pid


@pytest.mark.real
def test_what_other_programs_on_the_same_processor_take_is_counted_as_theirs():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    spinners: list[int] = []
    try:
        alone = fixed_work(400)
        spinners += [spin() for _ in range(4)]
        beside = fixed_work(400)
    finally:
        os.sched_setaffinity(0, before)
        for pid in spinners:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert beside["wall_ns"] > 2 * alone["cpu_ns"]
    own = beside["wall_ns"] - beside["others_ns"]
    assert own < 1.5 * beside["cpu_ns"]


@pytest.mark.parametrize(
    ("line", "place", "stat", "longest"),
    [
        ("0::/job/step", "job/step/cpu.stat", V2, 74_531_000),
        ("0::/job/step", "job/cpu.stat", V2, 74_531_000),
        ("0::/", "cpu.stat", V2, 74_531_000),
        ("1:cpu:/job", "cpu/job/cpu.stat", V1, 74_531_461),
        ("4:cpu,cpuacct:/job", "cpu,cpuacct/job/cpu.stat", V1, 74_531_461),
        ("0::/job", "unified/job/cpu.stat", V2, 74_531_000),
        ("7:memory:/job", "memory/job/cpu.stat", V1, 0),
        ("0::/job", "elsewhere/cpu.stat", V2, 0),
        ("0::/job", "job/cpu.stat", "throttled_usec much\n", 0),
    ],
)
def test_a_quotas_doing_is_read_from_the_cgroup_and_those_above_it(tmp_path, line, place, stat, longest):
    own, file = tmp_path / "own", tmp_path / "root" / place
    own.write_text(line + "\n")
    file.parent.mkdir(parents=True)
    file.write_text(stat)
    assert throttled_ns(str(own), str(tmp_path / "root")) == longest


def test_a_kernel_that_counts_nothing_blames_nobody_else(tmp_path):
    (tmp_path / "broken").write_text("x y")
    assert waited_ns(str(tmp_path / "broken")) == 0
    assert waited_ns(str(tmp_path / "none")) == 0
