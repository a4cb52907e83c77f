# ruff: noqa: E501 - one line a row, as it is printed
"""What ib_write_bw and ib_write_lat print across versions 4 to 6 and 24.x, with what they warn of, and how they fail.

Written from linux-rdma/perftest (src/perftest_parameters.h, the headers and formats; src/get_clock.c, the warning of
frequencies; src/perftest_communication.c, the failures), and outputs quoted in its issue 173 and in public guides.
"""

from __future__ import annotations

import pytest

from fairlead.preflight.ranks.perftest import parse

RULE = "-" * 87
HEAD = f"""\
{RULE}
                    RDMA_Write {{kind}} Test
 Dual-port       : OFF\t\tDevice         : mlx5_ib3
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 PCIe relax order: ON\t\tLock-free      : OFF
 ibv_wr* API     : ON\t\tUsing Enhanced Reorder      : OFF
 TX depth        : 128
 CQ Moderation   : 1
 CQE Poll Batch  : 16
 Mtu             : 4096[B]
 Link type       : IB
 Max inline data : 0[B]
 rdma_cm QPs\t : {{cm}}
 Data ex. method : {{method}}
{RULE}
 local address: LID 0x01e QPN 0x0126 PSN 0x8c1bb7 RKey 0x1fff00 VAddr 0x007f3a
 remote address: LID 0x02c QPN 0x0127 PSN 0x3a0d1f RKey 0x1fff01 VAddr 0x007f3b
{RULE}
"""
BW, LAT = HEAD.format(kind="BW", cm="OFF", method="Ethernet"), HEAD.format(kind="Latency", cm="OFF", method="Ethernet")
CM = HEAD.format(kind="BW", cm="ON", method="rdma_cm")
GBITS = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
LAT_OF = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   {}\n"
BUSY = "Conflicting CPU frequency values detected: 1200.535000 != 3177.498000. CPU Frequency is not max.\n"

GOOD: dict[str, tuple[str, dict[str, float]]] = {
    "gigabits": (BW + GBITS + " 65536      5000             394.11             394.02\t\t     0.751533\n", {"gbps": 394.02}),
    "by rdma_cm": (CM + GBITS + " 65536      5000             394.11             394.02\t\t     0.751533\n", {"gbps": 394.02}),
    "a peak that is not measured": (
        " WARNING: BW peak won't be measured in this run.\n" + BW + GBITS + " 1048576    46900            0.00               393.42\t\t   0.046900\n",
        {"gbps": 393.42},
    ),
    "frequencies differ": (BW + GBITS + BUSY + " 65536      1000             391.40             390.55\t\t     0.744912\n", {"gbps": 390.55}),
    "use of a processor": (
        BW + GBITS.replace("MsgRate[Mpps]", "MsgRate[Mpps]   CPU_Util[%]") + " 65536      5000             394.11             394.02\t\t     0.751533\t    1.56\n",
        {"gbps": 394.02},
    ),
    "MB, which are MiB": (
        BW + GBITS.replace("Gb/sec", "MB/sec") + " 65536      1000             46567.34            46557.03\t\t     0.744912\n",
        {"gbps": 390.548},
    ),
    "MiB in newer words": (
        BW + GBITS.replace("Gb/sec", "MiB/sec") + BUSY + " 65536      1000             46567.34            46557.03\t\t     0.744912\n",
        {"gbps": 390.548},
    ),
    "latency": (
        LAT + LAT_OF.format("99% percentile[usec]   99.9% percentile[usec]") + BUSY + BUSY
        + " 2       1000          1.84           12.20        1.90     \t       1.97        \t0.47   \t\t2.24    \t\t12.20\n",
        {"latency_us": 1.90},
    ),
    "latency, columns run together": (
        LAT + LAT_OF.format("99% percentile[usec]   99.9% percentile[usec]")
        + " 2       1000          453.06         37330.73     692.41            928.05           2465.901216.65                 37330.73\n",
        {"latency_us": 692.41},
    ),
    "latency, older": (
        LAT + LAT_OF.format("99% percentile[usec]   99.9% percentile[usec]").replace("[usec]   99.9%", "   99.9%")
        + " 8       1000          1.57           5.21         1.60     \t       1.61        \t0.05   \t\t1.66    \t\t5.21\n",
        {"latency_us": 1.60},
    ),
    "latency by time": (LAT + " #bytes        #iterations       t_avg[usec]    tps average\n 8             300000            1.66           301204.82\n", {"latency_us": 1.66}),
    "a smaller MTU": (
        "Requested mtu is higher than active mtu \nChanging to active mtu - 3\n" + BW + GBITS + " 65536      5000             98.02              98.00\t\t     0.186920\n",
        {"gbps": 98.0},
    ),
}  # fmt: skip

FAILED = {
    "nobody listens": "Couldn't connect to 10.0.0.5:18515\nUnable to open file descriptor for socket connection Unable to init the socket connection\n",
    "a port that is down": " Port number 1 state is Down\n Couldn't set the link layer\n Couldn't get context for the device\n",
    "no such device": "IB device mlx5_9 not found\n Unable to find the Infiniband/RoCE device\n",
    "no answer": BW + GBITS + " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n Failed to complete run_iter_bw function successfully\n",
    "the other side is gone": BW.split(" local")[0] + "ethernet_read_keys: Couldn't read remote address\n Unable to read to socket/rdma_cm\nFailed to exchange data between server and clients\n",
    "no route": BW.split(" local")[0] + "Failed to modify QP 303 to RTR\n Unable to Connect the HCA's through the link\n",
    "no number": BW + GBITS + " 65536      5000             -nan               -nan\t\t     0.000000\n",
    "memory that may not be locked": "Couldn't allocate MR\nfailed to create mr\nFailed to create MR\n Couldn't create IB resources\n",
    "a broken off row": BW + GBITS + " 65536      50",
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_result_is_read(name: str) -> None:
    text, label = GOOD[name]
    assert parse(text) == pytest.approx(label, rel=1e-4)


@pytest.mark.parametrize("name", FAILED)
def test_a_failure_is_no_result(name: str) -> None:
    assert parse(FAILED[name]) == {}
