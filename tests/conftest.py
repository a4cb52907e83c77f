"""What the whole suite shares: skipping by capability, a census of what was skipped, where chance comes from, workers.

FAIRLEAD_REQUIRE names the capabilities a full run must have (see `fairlead doctor`); there, what would skip fails.
FAIRLEAD_DEPTH is how deep tests that draw their cases go (`support/depth.py`).
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from fairlead.base.machine import capability, names
from support import collection, kube
from support.captures import captures_root
from support.depth import DEPTH, cases
from support.kusto import kusto_root

collection.keep_compiled_code()

LABS = "FAIRLEAD_TEST_LABS"
"""Where all workers of a run keep their labs, each in a folder of its own."""
OWN = pytest.StashKey[str]()

_OURS: dict[str, tuple[Callable[[], tuple[bool, str]], str]] = {
    "captures": (lambda: (captures_root() is not None, "no folder of captures"), "FAIRLEAD_CAPTURES=FOLDER"),
    "kusto": (
        lambda: (kusto_root() is not None, "no Kusto language service, or no node"),
        "npm install --prefix FOLDER @kusto/language-service-next; FAIRLEAD_KUSTO=FOLDER",
    ),
    "clickhouse": (
        lambda: (Path("/usr/sbin/clickhouse-server").exists(), "no ClickHouse server"),
        "apt-get install clickhouse-server",
    ),
    "kube": (kube.look, "make kube"),
    "kubelet": (kube.look_for_node, "make kube, as root, where cgroups are of version 1"),
}
"""What only tests use: how it is looked for, and how to have it."""

REQUIRED = set(os.environ.get("FAIRLEAD_REQUIRE", "").split())

# a slow example says nothing about the code: the machine may be busy
_ANY_MACHINE = hypothesis.settings(
    max_examples=cases(100), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("fixed", _ANY_MACHINE, derandomize=True, database=None)
hypothesis.settings.register_profile("deep", _ANY_MACHINE, print_blob=True)
hypothesis.settings.load_profile("fixed" if DEPTH == 1 else "deep")


def pytest_configure(config: pytest.Config) -> None:
    # a shell starts background commands with Ctrl-C ignored, and children would inherit that: many tests interrupt them
    signal.signal(signal.SIGINT, signal.default_int_handler)
    collection.begin_elsewhere(config)
    config.addinivalue_line(
        "markers",
        f"requires(*names): capabilities of the machine, by their names in `fairlead doctor`; {', '.join(_OURS)}",
    )
    if LABS not in os.environ:
        os.environ[LABS] = config.stash[OWN] = tempfile.mkdtemp(prefix="fairlead-tests-")
    unknown = REQUIRED - {*names(), *_OURS}
    if unknown:
        raise pytest.UsageError(f"FAIRLEAD_REQUIRE names no capability: {' '.join(sorted(unknown))}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Labs of workers that did not end well are taken down by the process that started them."""
    if place := config.stash.get(OWN, None):
        from support.labs import take_down_all

        take_down_all(Path(place))
        del os.environ[LABS]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    collection.in_one_order(config, items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        for name in mark.args:
            is_there, detail, get = _look(name)
            if is_there:
                continue
            if name in REQUIRED:
                pytest.fail(f"this run requires {name}: {detail}", pytrace=False)
            pytest.skip(f"needs {name}: {get}")


def _look(name: str) -> tuple[bool, str, str]:
    """Whether a capability is there, what was found, and how to have it."""
    if name in _OURS:
        look, get = _OURS[name]
        return *look(), get
    found = capability(name)
    return found.ok, found.detail, found.get


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """`-n` without a `--dist` of its own."""
    if config.getoption("dist") != "load":
        return None
    from support.workers import Spread

    return Spread(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A worker sends its reports as UTF-8; what a test printed need not be."""
    return _utf8((yield))


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_utf8(key): _utf8(item) for key, item in value.items()}
    return type(value)(map(_utf8, value)) if isinstance(value, (list, tuple)) else value


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    why = Counter(str(r.longrepr[2]).removeprefix("Skipped: ") for r in skipped if isinstance(r.longrepr, tuple))
    terminalreporter.section("skip census")
    for reason, number in why.most_common():
        terminalreporter.write_line(f"{number:5}  {reason}")
    if not why:
        terminalreporter.write_line("nothing was skipped")
    if num := len(_counted(skipped)):
        terminalreporter.write_line(f"{num} of them fail this run: what is required skips nothing")


def _counted(skipped: list[pytest.TestReport]) -> list[pytest.TestReport]:
    """A full run skips nothing, for whatever reason a test may give: but what only tests use and it did not ask for."""
    let_go = [f"needs {name}:" for name in _OURS if name not in REQUIRED]
    return [r for r in skipped if not any(why in str(r.longrepr) for why in let_go)] if REQUIRED else []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if _counted(skipped) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
