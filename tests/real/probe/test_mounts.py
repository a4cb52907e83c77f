"""Mounts of the kernel itself: what no path leads to is no place that could be full."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.real, pytest.mark.requires("userns")]

READ = """
import json, os, subprocess, sys
from fairlead.probe.readers.storage import read_mounts
from fairlead.probe.readers.tree import Tree
top = sys.argv[1]
for point in sys.argv[2:]:
    os.makedirs(top + point, exist_ok=True)
    device = "/dev/" + point.strip("/").replace("/", ".")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", device, top + point], check=True)
found = read_mounts(Tree("/"))
print(json.dumps({p[len(top):]: [e["device"], e["size_bytes"]] for p, e in found.items() if p.startswith(top)}))
"""

MIB = 1 << 20


@pytest.mark.parametrize(
    ("mounted", "shown"),
    [
        (["/run/netns", "/run"], {"/run": ["/dev/run", MIB]}),  # /run/netns stands below what /run hides
        (["/run", "/run/netns"], {"/run": ["/dev/run", MIB], "/run/netns": ["/dev/run.netns", MIB]}),
        (["/a/b/c", "/a/b", "/a"], {"/a": ["/dev/a", MIB]}),
        (["/a", "/a/b c", "/a/b"], {p: ["/dev/" + p[1:].replace("/", "."), MIB] for p in ("/a", "/a/b c", "/a/b")}),
        (["/a", "/a"], {"/a": ["/dev/a", MIB]}),
    ],
    ids=["below what hides it", "on top", "twice below", "a name that begins alike", "one on the other"],
)
def test_a_mount_that_another_hides_is_left_out(tmp_path, mounted, shown):
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", READ, str(tmp_path), *mounted]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == shown
