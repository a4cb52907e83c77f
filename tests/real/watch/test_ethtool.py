"""Statistics of a real driver by the ioctl, beside pyroute2's reading of the same: veth, in a namespace of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns")]

INSIDE = """
import json, subprocess
from pyroute2.ethtool.ioctl import IoctlEthtool
from fairlead.watch.onnode.ethtool import LinkStatistics
for words in ("link add v0 type veth peer name v1", "link set v0 up", "link set v1 up"):
    subprocess.run(["ip", *words.split()], check=True)
ours = LinkStatistics(keep="")
theirs = IoctlEthtool("v0")
found = [ours.read("v0"), dict(theirs.get_statistics()), ours.read("v0"), LinkStatistics().read("v0")]
subprocess.run(["ip", "link", "del", "v0"], check=True)
try:
    ours.read("v0")
    found.append("read")
except OSError as error:
    found.append(error.errno)
print(json.dumps(found))
"""


def test_names_and_numbers_of_a_driver_are_those_that_pyroute2_reads():
    words = ["unshare", "-n", sys.executable, "-c", INSIDE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, theirs, second, only_vf, gone = json.loads(done.stdout)
    assert set(first) == set(theirs)
    assert len(first) > 2
    for name, value in theirs.items():
        assert first[name] <= value <= second[name]
    assert only_vf == {}
    assert gone != "read"
