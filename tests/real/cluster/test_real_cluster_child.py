"""Local processes that end at the worst moment: while somebody looks at what runs below them."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from fairlead.cluster.child import kill_tree
from fairlead.cluster.onnode.processes import descendants
from support.processes import left_after

ENDS_WHILE_LISTED = textwrap.dedent(
    """
    import os, subprocess, sys
    from fairlead.cluster.child import _below, kill_tree

    def at_the_worst_moment(event, args):  # the interpreter says so before it lists a directory (PEP 578)
        if event in ("os.listdir", "os.scandir") and str(args[0]) == f"/proc/{child.pid}/task" and child.poll() is None:
            seen.append(event)
            child.kill()
            child.wait()

    seen, child = [], subprocess.Popen(["sleep", "600"])
    sys.addaudithook(at_the_worst_moment)
    assert _below(child.pid) == []
    assert len(seen) == 1, seen
    child = subprocess.Popen(["sleep", "600"])
    kill_tree(child.pid)
    assert len(seen) == 2, seen
    """
)


def test_a_process_that_ends_while_its_threads_are_listed_has_nothing_below_it():
    done = subprocess.run([sys.executable, "-c", ENDS_WHILE_LISTED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_tree_whose_branches_come_and_go_is_killed_whole():
    mark = "86400.0718"
    script = f"sleep {mark} & while :; do (sleep 0.001 & exit 0); done"
    for _ in range(20):
        child = subprocess.Popen(["sh", "-c", script], start_new_session=True)
        while not descendants(child.pid):
            pass
        kill_tree(child.pid)
        child.wait(60)
        assert not left_after(mark, 60)
