"""The transport compiled: bursts of packets packed, parsed and judged without Python in between."""
