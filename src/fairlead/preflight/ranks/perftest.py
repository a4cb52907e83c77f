"""What ib_write_bw and ib_write_lat print, read as numbers. Pure.

Formats of linux-rdma/perftest (src/perftest_parameters.h): a header that names the columns, then a line for each size.

     #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
     1048576    236500           0.00               393.42               0.046900
     #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   ...

Without --report_gbits bandwidth is in MB/sec, 2^20 bytes, called MiB/sec in newer versions; with -D latency
has only t_avg and tps. A large t_stdev runs into the percentile behind it: `2465.901216.65`.
"""

from __future__ import annotations

import math
import re

_HEADER = re.compile(r"^\s*#bytes\s+#iterations\s+(.*)$")
_COLUMN = re.compile(
    r"BW average\[(Gb/sec|Mi?B/sec)\]|BW peak\[[^]]*\]|MsgRate\[[^]]*\]|t_\w+\[usec\]|[\d.]+% percentile\[usec\]|"
    r"tps average"
)
_GLUED = re.compile(r"(\.\d\d)(?=\d+\.)")


def parse(out: str) -> dict[str, float]:
    """`gbps` or `latency_us` of the last size printed; empty where there is no result."""
    columns: list[str] = []
    found: dict[str, float] = {}
    for line in out.splitlines():
        if header := _HEADER.match(line):
            columns = [match[0] for match in _COLUMN.finditer(header[1])]
            continue
        words = _GLUED.sub(r"\1 ", line).split()
        if not columns or len(words) < 2 + len(columns) or not words[0].isdigit():
            continue
        try:
            values = dict(zip(columns, map(float, words[2:]), strict=False))
        except ValueError:
            continue
        if not all(map(math.isfinite, values.values())):
            continue
        for name, value in values.items():
            if name == "BW average[Gb/sec]":
                found["gbps"] = value
            elif name.startswith("BW average"):
                found["gbps"] = value * 8 * 2**20 / 1e9
        latency = values.get("t_typical[usec]", values.get("t_avg[usec]"))
        if latency is not None:
            found["latency_us"] = latency
    return found
