"""ib_write_bw and ib_write_lat: what they print, who is slow by it, and the programs' way through on a node."""

from __future__ import annotations

import socket
import sys
import textwrap

import pytest

from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.onnode.perftest import listens, measure, start_server, stop_server
from fairlead.preflight.ranks.perftest import parse
from fairlead.preflight.ranks.wanted import Wanted, common_hcas
from fairlead.records.verdict import Verdict
from fairlead.spec.vmsize import size
from support.rank_facts import ranks, say

# Written from the format strings in linux-rdma/perftest, src/perftest_parameters.h (RESULT_FMT*, REPORT_FMT*).
BW = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : mlx5_ib3
 Number of qps   : 1		Transport type : IB
 Link type       : IB
---------------------------------------------------------------------------------------
 local address: LID 0x1e QPN 0x0126 PSN 0x8c1bb7 RKey 0x1fff00 VAddr 0x007f3a
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    46900            0.00               {}               0.046900
---------------------------------------------------------------------------------------
"""
LAT = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile
 8       1000          1.57           5.21         {}     	       1.61        	0.05   		1.66
"""


def test_what_they_print():
    assert parse(BW.format(393.42)) == {"gbps": 393.42}
    assert parse(LAT.format(1.6)) == {"latency_us": 1.6}
    in_mb = (
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536 5 9.1 23428.9 0.37\n"
    )
    assert parse(in_mb)["gbps"] == pytest.approx(196.54, abs=0.01)
    by_time = " #bytes        #iterations       t_avg[usec]    tps average\n 8 300000 1.66 301204.8\n"
    assert parse(by_time) == {"latency_us": 1.66}


@pytest.mark.parametrize("out", ["", "Couldn't connect to 10.0.0.1:18515", BW.splitlines()[7], BW.format("nan?")])
def test_no_result_is_none(out):
    assert parse(out) == {}


def measured(gbps=lambda *_: 393.0, us=lambda *_: 1.6, num=4, per=8):
    facts = ranks(num, per)
    for src in range(num):
        dst = (src + 1) % num
        for rail in range(per):
            own = {"rank": src * per + rail, "node": f"n{src}"}
            to = {"dst": dst * per + rail, "rail": rail, "device": f"mlx5_ib{rail}"}
            for program, text, value in (
                ("ib_write_bw", BW, gbps(src, dst, rail)),
                ("ib_write_lat", LAT, us(src, dst, rail)),
            ):
                out = text.format(value) if value else ""
                say(facts, own, "perf", 5.5, program=program, out=out, error="" if value else "exit 1: no route", **to)
    return facts


def judged(facts, **wanted):
    found = judge_ranks(facts, {}, Wanted(rdma="ib", link="infiniband", **wanted))
    return [f for f in found if f.code in ("preflight/slow-rail", "preflight/late-rail", "preflight/rails")]


def test_rails_at_the_ports_rate_are_well():
    (found,) = judged(measured(), port_gbps=400)
    assert (found.verdict, found.message) == (
        Verdict.PASS,
        "32 directed rails measured by RDMA: median 393 Gb/s, 1.6 us",
    )


def test_a_slow_port_is_named_with_its_device():
    found = judged(measured(lambda s, d, r: 98.0 if r == 3 and 2 in (s, d) else 393.0), port_gbps=400)
    assert [(f.code, f.verdict, str(f.subject)) for f in found[:1]] == [
        ("preflight/slow-rail", Verdict.FAIL, "n2 rail 3 (mlx5_ib3)")
    ]
    assert "98 Gb/s by RDMA (ib_write_bw), and at least 360 is expected" in found[0].message


def test_the_vm_sizes_own_number_goes_first():
    """190 Gb/s between two ND A100 v4 nodes (InfiniBand on AKS)."""
    a100 = {"size": size("Standard_ND96asr_v4"), "port_gbps": 200}
    assert [f.code for f in judged(measured(lambda *_: 186.0), **a100)] == ["preflight/slow-rail", "preflight/rails"]
    assert [f.code for f in judged(measured(lambda *_: 196.0), **a100)] == ["preflight/rails"]


def test_a_late_rail_is_a_warning():
    found = judged(measured(us=lambda s, d, r: 9.0 if r == 5 and 1 in (s, d) else 1.6), port_gbps=400)
    assert (found[0].code, found[0].verdict, str(found[0].subject)) == (
        "preflight/late-rail", Verdict.WARN, "n1 rail 5 (mlx5_ib5)")  # fmt: skip


def test_what_could_not_be_measured_is_unknown_and_never_a_pass():
    found = judged(measured(lambda s, *_: 0 if s == 1 else 393.0), port_gbps=400)
    assert Verdict.UNKNOWN in [f.verdict for f in found]
    assert Verdict.PASS not in [f.verdict for f in found]


def test_why_it_was_left_out_is_said():
    facts = ranks()
    say(facts, {"rank": 0, "node": "n0"}, "perf_skipped", 5.5, why="ib_write_bw and ib_write_lat are not on every node")
    (found,) = judged(facts)
    assert found.verdict is Verdict.SKIP


def test_that_it_was_asked_for_and_could_not_be_is_said():
    """Nodes that call their ports otherwise have none in common."""
    (found,) = judged(ranks(), perftest=True)
    assert (found.verdict, found.message) == (
        Verdict.SKIP, "rails not measured by RDMA: no RDMA device that counts is on all nodes")  # fmt: skip


def test_devices_that_count_everywhere_in_the_order_of_their_numbers():
    hcas = {"n0": frozenset({"mlx5_10", "mlx5_2", "mlx5_3"}), "n1": frozenset({"mlx5_10", "mlx5_2"})}
    assert common_hcas(Wanted(hcas=hcas), ["n0", "n1"]) == ("mlx5_2", "mlx5_10")


# ---- on a node: a stand-in for the program, as there is no RDMA here; sockets, processes and ends are real -----------

STAND_IN = textwrap.dedent(
    """
    import socket, sys
    port = int(sys.argv[sys.argv.index("-p") + 1])
    if sys.argv[-1] == "127.0.0.1":  # a host behind the options: the client
        with socket.create_connection((sys.argv[-1], port)) as s:
            print(s.recv(4096).decode(), end="")
    else:
        with socket.create_server(("127.0.0.1", port)) as door:
            s, _ = door.accept()
            s.sendall(sys.stdin.read().encode() or b"result")
            s.close()
    """
)


def test_a_server_that_listens_is_met_by_its_client():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-c", STAND_IN, "-p", str(port)]
    server = start_server([*words, "-F"], port)
    try:
        assert listens(port)
        out, error = measure([*words, "127.0.0.1"])
    finally:
        stop_server(server)
    assert (out, error) == ("result", "")
    assert not listens(port)


def test_a_client_without_a_server_says_what_went_wrong():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    out, error = measure([sys.executable, "-c", STAND_IN, "-p", str(port), "127.0.0.1"])
    assert out == ""
    assert "exit 1" in error
    assert measure(["/no/such/program"])[1]
