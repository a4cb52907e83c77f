"""The kernel's own log and a journal, read as a collector reads them: the real device, a real journald."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.logs.onnode.sources import Source, Sources
from fairlead.logs.onnode.streams import Journal, Kmsg
from support.processes import DIES_WITH_US

pytestmark = [pytest.mark.real, pytest.mark.requires("root")]
JOURNALD = "/lib/systemd/systemd-journald"
LIMIT_S = 30.0
MOST_BYTES = 1 << 26


def kept(sources: Sources, source: Source) -> list[str]:
    """What a stream has brought into the spool."""
    return sources.spool.read(source.number, 0, MOST_BYTES)[1].decode(errors="replace").splitlines()


def until(poll: Callable[[], object], is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        if not poll():
            time.sleep(0.02)


def told(text: str) -> None:
    """Have the kernel log a line, as programs may."""
    handle = os.open("/dev/kmsg", os.O_WRONLY)
    os.write(handle, f"<6>fairlead-kmsg: {text}\n".encode())
    os.close(handle)


def test_the_kernels_log_is_read_once_over_a_restart(tmp_path: Path) -> None:
    try:
        told(first := uuid.uuid4().hex)
    except OSError as error:
        pytest.skip(f"/dev/kmsg: {error.strerror}")
    sources = Sources(str(tmp_path), 1 << 26)
    reader = Kmsg(sources, "/dev/kmsg", "boot")
    until(reader.poll, lambda: any(first in line for line in kept(sources, reader.source)))
    reader.close()
    told(second := uuid.uuid4().hex)
    again = Sources(str(tmp_path), 1 << 26)  # as after a kill: what is known is what lies there
    reader = Kmsg(again, "/dev/kmsg", "boot")
    until(reader.poll, lambda: any(second in line for line in kept(again, reader.source)))
    reader.close()
    lines = kept(again, reader.source)
    assert [sum(text in line for line in lines) for text in (first, second)] == [1, 1]
    numbers = [int(line.split(",")[1]) for line in lines if line[:1].isdigit()]
    assert numbers == sorted(set(numbers))


@pytest.fixture
def journal() -> Iterator[list[str]]:
    """A journald with a /run of its own; the words that run a program beside it."""
    if not (os.access(JOURNALD, os.X_OK) and shutil.which("systemd-cat") and shutil.which("nsenter")):
        pytest.skip("no systemd-journald")
    hold = "mount -t tmpfs tmpfs /run && mkdir -p /run/log/journal /run/systemd/journal && exec " + JOURNALD
    child = subprocess.Popen([*DIES_WITH_US, "unshare", "--mount", "--", "sh", "-c", hold],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    inside = ["nsenter", "--mount", f"--target={child.pid}", "--"]
    try:
        deadline = time.monotonic() + LIMIT_S
        while subprocess.run([*inside, "test", "-S", "/run/systemd/journal/stdout"], capture_output=True).returncode:
            assert time.monotonic() < deadline
            if child.poll() is not None:
                pytest.skip(f"{JOURNALD} does not run here: it ended with {child.returncode}")
            time.sleep(0.05)
        yield inside
    finally:
        child.kill()
        child.wait()


def test_a_real_journal_is_read_once_over_a_restart(tmp_path: Path, journal: list[str]) -> None:
    def write(text: str) -> None:
        subprocess.run([*journal, "systemd-cat", "-t", "fairlead-journal", "echo", text], check=True, timeout=LIMIT_S)

    def messages(sources: Sources, source: Source) -> list[str]:
        found = [json.loads(line) for line in kept(sources, source)]
        return [each["MESSAGE"] for each in found if each.get("SYSLOG_IDENTIFIER") == "fairlead-journal"]

    words = [*journal, "journalctl"]
    write("one")
    sources = Sources(str(tmp_path), 1 << 26)
    reader = Journal(sources, words)
    until(reader.poll, lambda: "one" in messages(sources, reader.source))
    write("two")
    until(reader.poll, lambda: "two" in messages(sources, reader.source))
    reader.close()
    write("three")
    again = Sources(str(tmp_path), 1 << 26)
    reader = Journal(again, words)
    until(reader.poll, lambda: "three" in messages(again, reader.source))
    reader.close()
    assert messages(again, reader.source) == ["one", "two", "three"]
