"""What the whole suite shares: skipping by capability, the census of what was skipped, and where chance comes from.

FAIRLEAD_REQUIRE names the capabilities a full run must have (see `fairlead doctor`); there, what would skip fails, and
property tests try the same examples each time, so that a change is judged by what it changed. All other runs explore.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import hypothesis
import pytest

from fairlead.base.machine import NAMES, capability

REQUIRED = set(os.environ.get("FAIRLEAD_REQUIRE", "").split())

hypothesis.settings.register_profile("full run", derandomize=True, database=None)
if REQUIRED:
    hypothesis.settings.load_profile("full run")


def pytest_configure(config: pytest.Config) -> None:
    # a shell starts background commands with Ctrl-C ignored, and children would inherit that: many tests interrupt them
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers", "requires(*names): capabilities of the machine, by their names in `fairlead doctor`"
    )
    unknown = REQUIRED - set(NAMES)
    if unknown:
        raise pytest.UsageError(f"FAIRLEAD_REQUIRE names no capability: {' '.join(sorted(unknown))}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        for name in mark.args:
            found = capability(name)
            if found.ok:
                continue
            if name in REQUIRED:
                pytest.fail(f"this run requires {name}: {found.detail}", pytrace=False)
            pytest.skip(f"needs {name}: {found.get}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    why = Counter(str(r.longrepr[2]).removeprefix("Skipped: ") for r in skipped if isinstance(r.longrepr, tuple))
    terminalreporter.section("skip census")
    for reason, number in why.most_common():
        terminalreporter.write_line(f"{number:5}  {reason}")
    if not why:
        terminalreporter.write_line("nothing was skipped")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A full run skips nothing at all, for whatever reason a test may give."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if REQUIRED and reporter and reporter.stats.get("skipped") and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
