"""A node whose log says that it is another's: the lines are those of the node that sent them."""

from __future__ import annotations

import base64
import json

import pytest

from fairlead.logs.batch import Part, Source, as_of, taken
from fairlead.logs.eventtime import Clock

SYSLOG = "Nov 23 10:00:01 {host} kernel: NVRM: Xid (PCI:0001:00:00): 79, pid=1, GPU has fallen off the bus.\n"
JOURNAL = {"__REALTIME_TIMESTAMP": "1764060000000000", "SYSLOG_IDENTIFIER": "kernel", "PRIORITY": "2", "MESSAGE": "Xid"}
CLOCK = Clock(written_ns=1_764_000_000 * 10**9, now_ns=1_764_000_001 * 10**9)


def computers(text: str, path: str) -> list[tuple[str, str]]:
    """(node, what the line calls it) of each record of a part that n2 sends."""
    data = text.encode()
    head = base64.b64encode(data[:4096]).decode()
    part = Part(id=1, path=path, start=0, end=len(data), size=len(data), settled=True, whole=True, head=head)
    found = taken(part, data, Source.of(part, ()), ("n2", CLOCK), (0, 0))
    as_of("n2", found.records)
    return [(record.node, record.fields.get("SaidHost", "")) for record in found.records]


@pytest.mark.parametrize(("host", "said"), [("n0", "n0"), ("n2", ""), ("N2.cluster", ""), ("n2x", "n2x"), ("-", "")])
def test_whose_line_of_a_syslog_it_is_says_the_sender(host, said):
    assert computers(SYSLOG.format(host=host) * 2, "/var/log/syslog") == [("n2", said)] * 2


def test_nor_does_the_journal_say_it():
    text = json.dumps(JOURNAL | {"_HOSTNAME": "n0"}) + "\n"
    assert {node for node, _ in computers(text, "/var/log/journal.json")} == {"n2"}
