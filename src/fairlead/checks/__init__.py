"""Checks: the catalogue of what can be wrong with a node, the pure rules behind it, and `judge`, which applies them.

This is the only home of a rule about a single node. Nothing here reads a machine.
"""

from __future__ import annotations

from fairlead.checks.catalog import CATALOG, Check
from fairlead.checks.engine import judge, judge_node
from fairlead.checks.expect import DEFAULTS, Expect, expect_of
from fairlead.checks.gpus import counted_gpus, gpus_of
from fairlead.checks.hcas import rdma_devices
from fairlead.checks.holes import condensed
from fairlead.checks.rules.gpu import gpu_count
from fairlead.checks.skews import SKEWS

__all__ = [
    "CATALOG",
    "DEFAULTS",
    "SKEWS",
    "Check",
    "Expect",
    "condensed",
    "counted_gpus",
    "expect_of",
    "gpu_count",
    "gpus_of",
    "judge",
    "judge_node",
    "rdma_devices",
]
