"""What a record proves. Pure.

Nobody called, and real answers came: pass. A call: fail, each by process and destination. No call, but no answer
either, or a count of the kernel that no call explains: nothing is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from fairlead.base.units import counted, duration
from fairlead.records.finding import Evidence, Finding, Subject, worst_first
from fairlead.records.verdict import Verdict
from fairlead.serve.proof.record import Attempt, Record

_REMEDIES = (
    ("dns:", "Find out what wants this name: offline settings (HF_HUB_OFFLINE=1), files missing from the model."),
    (
        "8.8.8.8:80/udp",
        "vLLM asks the kernel for this host's address that way, and sends nothing: VLLM_HOST_IP=127.0.0.1, or --allow.",
    ),
    (
        "[2001:4860:4860::8888]:80/udp",
        "vLLM asks the kernel for this host's address that way, and sends nothing: VLLM_HOST_IP=127.0.0.1, or --allow.",
    ),
    ("unix:", "If you know who listens there and that it leads nowhere: --allow 'unix:PATH'."),
)
_REMEDY = (
    "Turn it off (VLLM_NO_USAGE_STATS=1, DO_NOT_TRACK=1, HF_HUB_DISABLE_TELEMETRY=1), or put what it wants into the "
    "bundle."
)


def judge(record: Record, allowed: Sequence[str] = ()) -> list[Finding]:
    """What was found; `allowed` are patterns of destinations that do not count."""
    found, told = list[Finding](), list[Finding]()
    for attempt in record.attempts:
        pattern = next((p for p in allowed if fnmatchcase(attempt.to, p)), "")
        if pattern:
            said = f"{_sentence(attempt)}; --allow {pattern}"
            told.append(_finding("serve/called-out", Verdict.SKIP, attempt.process, said, attempt))
        else:
            remedy = next((text for head, text in _REMEDIES if attempt.to.startswith(head)), _REMEDY)
            found.append(
                _finding("serve/called-out", Verdict.FAIL, attempt.process, _sentence(attempt), attempt, remedy=remedy)
            )
    if record.left_out:
        text = f"and {counted(record.left_out, 'more call')} that were not kept"
        found.append(_finding("serve/called-out", Verdict.FAIL, "server", text))
    answered = [a for a in record.asked if a.status == 200 and a.what.startswith("POST")]
    if not answered:
        found.append(_unanswered(record))
    elif not found and record.status is not None:
        text = f"the server ended by itself ({_ended(record.status)}) before the watch was over"
        found.append(_finding("serve/no-answer", Verdict.UNKNOWN, "server", text, remedy=_LOG))
    elif not found and record.no_route and not record.attempts:
        text = f"the kernel counted {counted(record.no_route, 'packet')} without a route, and no call was seen for them"
        found.append(_finding("serve/unexplained", Verdict.UNKNOWN, "server", text, remedy=_LOG))
    if not found:
        text = (
            f"{len(answered)} of {len(record.asked) - 1} generations answered, ready after {duration(record.ready_s)}, "
            f"watched for {duration(record.watched_s)} more and to its end: no connection and no name asked for"
        )
        found.append(_finding("serve/offline", Verdict.PASS, "server", text + (" but those allowed" if told else "")))
    return worst_first([*found, *told])


_LOG = "Its output says more: server.log in the run folder."


def _unanswered(record: Record) -> Finding:
    if record.status is not None:
        text = f"the server ended with {_ended(record.status)} before it answered"
    elif not record.model:
        text = f"the server named no model at /v1/models within {duration(record.ready_s)}"
    else:
        first = next((a for a in record.asked if a.what.startswith("POST")), None)
        why = f": {first.what} got {first.status or 'no answer'} {first.why}".rstrip() if first else ""
        text = f"the server answered no question{why}"
    return _finding("serve/no-answer", Verdict.UNKNOWN, "server", text, remedy=_LOG)


def _ended(status: int) -> str:
    return f"status {status}" if status >= 0 else f"signal {-status}"


def _sentence(attempt: Attempt) -> str:
    what = "asked for the name" if attempt.how == "query" else f"{attempt.how} to"
    to = attempt.to.removeprefix("dns:") if attempt.how == "query" else attempt.to
    times = f", {attempt.num} times" if attempt.num > 1 else ""
    thread = f" (thread {attempt.thread})" if attempt.thread else ""
    return f"{what} {to}{times}, first after {duration(attempt.at_s)}{thread}"


def _finding(
    code: str, verdict: Verdict, about: str, message: str, attempt: Attempt | None = None, *, remedy: str = ""
) -> Finding:
    evidence = (Evidence(f"process {attempt.pid}", f"{attempt.how} {attempt.to}"),) if attempt else ()
    data = {"to": attempt.to, "pid": attempt.pid, "num": attempt.num, "at_s": attempt.at_s} if attempt else {}
    return Finding(
        code=code, verdict=verdict, subject=Subject(kind="job", name=about), message=message, evidence=evidence,
        remedy=remedy, data=data,
    )  # fmt: skip
