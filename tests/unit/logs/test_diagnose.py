# ruff: noqa: E501 - one line a message, as it is printed
"""Whole jobs that died: the cause, its node, who only suffered; and what must not be told."""

from __future__ import annotations

import dataclasses
import json

import pytest

from fairlead.logs.diagnose.model import Progress, Told
from fairlead.records.finding import Finding, Subject
from fairlead.records.verdict import Verdict
from support.wrecks import CONTROLLER, Wreck, ns

FELL_OFF = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
GSP = (
    "NVRM: Xid (PCI:0000:4e:00): 119, pid=2024380, name=x, Timeout after 6s of waiting for RPC response from GPU4 GSP!"
)
RETRIES = (
    "{0}:10:11 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : Got completion from peer {1}<44206> with status=12 opcode=1 "
    "len=0 vendor err 129 (Send) localGid x remoteGids y"
)
TRACEBACK = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    main()")


def addresses(wreck: Wreck) -> None:
    for number, node in enumerate(wreck.job.nodes, 1):
        wreck.out(f"{node}:10:11 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{number}<0>", 1)


def hang(wreck: Wreck, *without: int, at: float = 3600) -> None:
    for rank in range(wreck.ranks):
        if rank not in without:
            wreck.watchdog(rank, at)


def raised(wreck: Wreck, rank: int, last: str, at: float) -> None:
    for text in (*TRACEBACK, last):
        wreck.out(f"[rank{rank}]: {text}", at)


def test_hardware_before_what_it_does_to_others_whoever_speaks_first() -> None:
    wreck = Wreck()
    wreck.kernel("gpu02", 2999, GSP)
    wreck.kernel("gpu02", 3000, FELL_OFF)
    hang(wreck, 4, 5, 6, 7)
    wreck.out("srun: error: gpu01: tasks 0-3: Exited with exit code 1", 3601)
    found = wreck.diagnosed()
    assert (found.what, found.nodes, found.confidence) == ("gpu-bus", ("gpu02",), "high")
    assert found.victims == "gpu[01,03-04]"
    assert found.roots[0].text == FELL_OFF
    assert found.devices == ("0000:4e:00",)
    assert "NodeName=gpu02 State=DRAIN" in found.command
    assert found.exclude == "--exclude=gpu02"
    assert [link.what for link in found.chain] == ["gpu-bus", "gpu-firmware", "hang", "task-exit", "job"]


def test_carrier_loss_and_retries_to_its_node() -> None:
    wreck = Wreck()
    addresses(wreck)
    wreck.networkd("gpu03", 3000, "ib1: Lost carrier")
    wreck.out(RETRIES.format("gpu01", "10.0.0.3"), 3010)
    hang(wreck)
    found = wreck.diagnosed()
    assert (found.what, found.nodes) == ("link", ("gpu03",))
    assert found.roots[0].text == "ib1: Lost carrier"


def test_of_two_that_nothing_tells_apart_none_is_drained() -> None:
    wreck = Wreck()
    addresses(wreck)
    wreck.out(RETRIES.format("gpu01", "10.0.0.3"), 3010)
    found = wreck.diagnosed()
    assert (found.what, set(found.nodes), found.confidence) == ("link", {"gpu01", "gpu03"}, "low")
    assert "between gpu01 and gpu03" in found.says
    assert "DRAIN" not in found.command
    assert not found.exclude


def test_a_finding_of_another_run_tells_which_end_it_is() -> None:
    subject = Subject(kind="port", nodes=("gpu03",), name="mlx5_1/1")
    finding = Finding(code="watch/flapping", verdict=Verdict.FAIL, subject=subject, message="6 flaps in an hour")
    wreck = Wreck(findings=(Told(ns(-3600), "20260302-090000-watch-0000", finding),))
    addresses(wreck)
    wreck.out(RETRIES.format("gpu01", "10.0.0.3"), 3010)
    found = wreck.diagnosed()
    assert found.nodes == ("gpu03",)
    assert found.cited == (finding,)
    old = dataclasses.replace(wreck.findings[0], time_ns=ns(-200_000))
    wreck.findings = (old,)
    assert len(wreck.diagnosed().nodes) == 2, "what was found two days before says nothing"


def test_who_all_lost_links_meet_in_is_singled_out() -> None:
    wreck = Wreck()
    addresses(wreck)
    for node in ("gpu01", "gpu02", "gpu04"):
        wreck.out(RETRIES.format(node, "10.0.0.3"), 3010)
    found = wreck.diagnosed()
    assert (found.what, found.nodes) == ("link", ("gpu03",))


def test_an_exception_of_one_rank_is_the_programs_and_drains_nobody() -> None:
    wreck = Wreck()
    wreck.networkd("gpu03", 1000, "ib1: Lost carrier")
    wreck.networkd("gpu03", 1002, "ib1: Gained carrier")
    raised(wreck, 7, "ValueError: no such shard", 3000)
    wreck.out("[rank3]: torch.distributed.DistBackendError: NCCL error in: x, remote process exited", 3001)
    wreck.out("srun: error: gpu02: task 7: Exited with exit code 1", 3001)
    found = wreck.diagnosed()
    assert (found.what, found.nodes, found.at, found.ranks) == ("program-error", (), "gpu02", (7,))
    assert found.roots[0].text == "ValueError: no such shard"
    assert not found.command


def test_an_error_that_was_caught_is_none() -> None:
    wreck = Wreck(state="FAILED")
    raised(wreck, 0, "ModuleNotFoundError: No module named 'flash_attn'", 5)
    wreck.out("srun: error: gpu03: task 9: Exited with exit code 3", 3600)
    assert wreck.diagnosed().what == "program-error", "nothing tells that it was caught"
    file_id = next(line.file_id for line in wreck.lines() if "flash_attn" in line.text)
    wreck.progress = {(file_id, "0"): Progress(10**6, 0)}
    found = wreck.diagnosed()
    assert found.what == "not-in-the-logs"
    assert "gpu03" in found.says


def test_a_lost_node_and_what_its_own_log_knows() -> None:
    wreck = Wreck(state="NODE_FAIL")
    wreck.slurmctld(3300, "error: Nodes gpu04 not responding")
    wreck.slurmctld(3600, "error: Nodes gpu04 not responding, setting DOWN")
    wreck.slurmctld(3600.01, "requeue job JobId=4711 due to failure of node gpu04")
    assert (wreck.diagnosed().what, wreck.diagnosed().nodes) == ("node-lost", ("gpu04",))
    wreck.slurmctld(4300, "Node gpu04 unexpectedly rebooted boot_time=1757366000 last response=1757365800")
    assert wreck.diagnosed().what == "node-crash"
    wreck.kernel("gpu04", 3200, "Kernel panic - not syncing: Fatal exception in interrupt")
    found = wreck.diagnosed()
    assert (found.what, found.nodes, found.confidence) == ("node-crash", ("gpu04",), "high")
    assert any("panic" in root.text for root in found.roots)


ORDERED = [
    ("TIMEOUT", "Time limit exhausted for JobId=4711", "time-limit"),
    ("CANCELLED by 1000", "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=4711 uid 1000", "cancelled"),
    ("PREEMPTED", "preempted JobId=4711 has been requeued to reclaim resources for JobId=4712", "preemption"),
]


@pytest.mark.parametrize(("state", "text", "cls"), ORDERED)
def test_what_slurm_or_a_person_ended_blames_nobody(state: str, text: str, cls: str) -> None:
    wreck = Wreck(state=state)
    wreck.slurmctld(3600, text)
    wreck.out("slurmstepd: error: *** STEP 4711.0 ON gpu01 CANCELLED AT 2026-03-02T11:00:00 DUE TO X ***", 3600)
    wreck.out("srun: Job step aborted: Waiting up to 62 seconds for job step to finish.", 3600)
    raised(wreck, 3, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 15", 3600)
    found = wreck.diagnosed()
    assert (found.what, found.nodes, found.command) == (cls, (), "")


def test_who_cancelled_a_job_that_hung_did_not_break_it() -> None:
    wreck = Wreck(state="CANCELLED by 1000")
    wreck.kernel("gpu02", 2000, FELL_OFF)
    wreck.slurmctld(3600, "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=4711 uid 1000")
    found = wreck.diagnosed()
    assert (found.what, found.nodes) == ("gpu-bus", ("gpu02",))


def test_memory_by_the_jobs_own_number_in_the_path_of_its_group() -> None:
    line = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/slurm/uid_1/job_{0},task_memcg=/slurm/uid_1/job_{0}/step_0,task=python,pid=4,uid=1"
    wreck = Wreck(state="OUT_OF_MEMORY")
    wreck.kernel("gpu01", 3500, line.format(4711))
    wreck.out("srun: error: gpu01: task 3: Out Of Memory", 3501)
    wreck.slurmctld(3502, "_job_complete: JobId=4711 OOM failure")
    found = wreck.diagnosed()
    assert (found.what, found.nodes) == ("memory-limit", ("gpu01",))
    other = Wreck(state="FAILED")
    other.kernel("gpu01", 3500, line.format(4712))
    assert other.diagnosed().what == "not-in-the-logs", "another job of that node"


def test_a_file_system_that_all_wait_for_blames_none_of_them() -> None:
    wreck = Wreck()
    for node in wreck.job.nodes:
        wreck.kernel(node, 3000, "nfs: server fs1 not responding, still trying")
        wreck.kernel(node, 3130, "INFO: task python:12345 blocked for more than 120 seconds.")
    hang(wreck)
    found = wreck.diagnosed()
    assert (found.what, found.nodes, found.devices) == ("storage-stall", (), ("fs1",))


def test_who_kept_the_others_waiting_and_no_more_than_that() -> None:
    wreck = Wreck()
    hang(wreck, 5)
    found = wreck.diagnosed()
    assert (found.what, found.nodes, found.ranks, found.confidence) == ("collective-hang", ("gpu02",), (5,), "low")
    assert not found.command


HARMLESS = {
    "a flap that healed": [("networkd", "gpu03", 1000, "ib1: Lost carrier"), ("networkd", "gpu03", 1002, "ib1: Gained carrier")],
    "a file system that came back": [
        ("kernel", "gpu03", 1000, "nfs: server fs1 not responding, still trying"), ("kernel", "gpu03", 1010, "nfs: server fs1 OK"),
    ],
    "an application's fault of somebody": [("kernel", "gpu03", 1000, "NVRM: Xid (PCI:0000:4e:00): 43, pid=1, name=x, Ch 00000008")],
    "a node that answered late": [
        ("slurmctld", CONTROLLER, 1000, "error: Nodes gpu02 not responding"), ("slurmctld", CONTROLLER, 1060, "Node gpu02 now responding"),
    ],
    "another job": [("slurmctld", CONTROLLER, 3000, "requeue job JobId=99 due to failure of node gpu02")],
    "another node": [("kernel", "gpu99", 3000, FELL_OFF)],
    "after the end": [("kernel", "gpu02", 4300, FELL_OFF)],
    "hours before": [("kernel", "gpu02", -4000, FELL_OFF)],
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_events_are_no_cause_of_a_job_whose_cause_is_not_logged(name: str) -> None:
    wreck = Wreck()
    for kind, node, at, text in HARMLESS[name]:
        if kind == "slurmctld":
            wreck.slurmctld(at, text)
        else:
            getattr(wreck, kind)(node, at, text)
    wreck.out("srun: error: gpu03: task 9: Exited with exit code 3", 3600)
    assert wreck.diagnosed().what == "not-in-the-logs"


def test_a_job_that_completed_has_nothing_to_explain() -> None:
    wreck = Wreck(state="COMPLETED", exit_code="0:0")
    wreck.kernel("gpu02", 3000, FELL_OFF)
    found = wreck.diagnosed()
    assert (found.what, found.nodes) == ("", ())


def test_steps_long_after_an_error_show_that_the_job_survived_it() -> None:
    wreck = Wreck()
    wreck.kernel(
        "gpu02", 1000, "NVRM: Xid (PCI:0000:4e:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected"
    )
    raised(wreck, 7, "ValueError: no such shard", 3500)
    wreck.progress = {(99, ""): Progress(10**6, ns(3400))}
    found = wreck.diagnosed()
    assert found.what == "program-error"
    assert "went on" in next(o.why for o in found.others if o.what == "gpu-nvlink")


def test_a_clock_that_is_wrong_is_seen_and_taken_off() -> None:
    wreck = Wreck(skew={"gpu03": -400.0})
    wreck.slurmctld(0, "sched: Allocate JobId=4711 NodeList=gpu[01-04] #CPUs=32 Partition=p")
    for node in wreck.job.nodes:
        wreck.slurmd(node, 0.4, "launch task StepId=4711.0 request from UID:1000 GID:1000 HOST:10.0.0.1 PORT:55512")
        wreck.slurmd(node, 3599.5, "[4711.0] done with step")
    wreck.slurmctld(3600, "_job_complete: JobId=4711 done")
    wreck.kernel("gpu02", 3000, FELL_OFF)
    wreck.kernel("gpu03", 3100, FELL_OFF)
    found = wreck.diagnosed()
    assert found.nodes == ("gpu02",), "gpu03 says so earlier by its own clock alone"
    least, most = found.offsets_s["gpu03"]
    assert least <= -400 <= most
    assert most - least < 2


def event(kind: str, status: str, due: str, *names: str) -> str:
    """An entry as the documentation of scheduled events has it (Azure, Scheduled Events for Linux VMs)."""
    entry = {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123", "EventStatus": status, "EventType": kind,
        "ResourceType": "VirtualMachine", "Resources": list(names), "NotBefore": due, "EventSource": "Platform",
        "Description": "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
        "DurationInSeconds": 5,
    }  # fmt: skip
    return json.dumps({"DocumentIncarnation": 1, "Events": [entry]})


def lost(wreck: Wreck, node: str, at: float) -> None:
    wreck.slurmctld(at + 300, f"error: Nodes {node} not responding")
    wreck.slurmctld(at + 600, f"error: Nodes {node} not responding, setting DOWN")


DUE = "Mon, 02 Mar 2026 10:50:00 GMT"  # 3,000 s after the start


@pytest.mark.parametrize("kind", ["Freeze", "Reboot", "Redeploy"])
def test_what_the_platform_announced_is_the_cause_at_the_time_it_named(kind: str) -> None:
    wreck = Wreck(state="NODE_FAIL")
    wreck.syslog("gpu02", 2000, "scheduled-events", event(kind, "Scheduled", DUE, "gpu02"))
    lost(wreck, "gpu02", 3000)
    found = wreck.diagnosed()
    assert (found.what, found.nodes) == ("host-servicing", ("gpu02",))
    assert found.chain[0].what == "host-servicing"
    assert "node-lost" in [link.what for link in found.chain]


def test_an_announcement_for_other_machines_or_later_or_cancelled_blames_nobody() -> None:
    for text in (
        event("Freeze", "Scheduled", DUE, "gpu77"),  # all machines of a set hear of each other's events
        event("Freeze", "Scheduled", "Mon, 02 Mar 2026 18:00:00 GMT", "gpu02"),
        event("Freeze", "Canceled", DUE, "gpu02"),
    ):
        wreck = Wreck(state="NODE_FAIL")
        wreck.syslog("gpu02", 2000, "scheduled-events", text)
        lost(wreck, "gpu02", 3000)
        assert wreck.diagnosed().what == "node-lost", text


def test_an_event_that_started_counts_from_then_and_for_each_machine_it_names() -> None:
    wreck = Wreck(state="NODE_FAIL")
    wreck.syslog("gpu01", 2995, "scheduled-events", event("Redeploy", "Started", "", "gpu02", "gpu77"))
    lost(wreck, "gpu02", 3000)
    found = wreck.diagnosed()
    assert (found.what, found.nodes) == ("host-servicing", ("gpu02",))


@pytest.mark.parametrize("state", ["TIMEOUT", "CANCELLED by 1000"])
def test_a_job_that_hung_until_it_was_ended_died_of_what_stopped_it(state: str) -> None:
    wreck = Wreck(state=state, end=20_000)
    wreck.kernel("gpu02", 3000, FELL_OFF)
    wreck.slurmctld(
        20_000, "Time limit exhausted for JobId=4711" if state == "TIMEOUT"
        else "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=4711 uid 1000"
    )  # fmt: skip
    found = wreck.diagnosed()
    assert (found.what, found.nodes) == ("gpu-bus", ("gpu02",))
    wreck.progress = {(99, ""): Progress(10**6, ns(19_000))}
    assert wreck.diagnosed().what in {"time-limit", "cancelled"}, "it printed steps until then"


def test_what_is_only_possible_hours_before_a_time_limit_is_no_cause() -> None:
    wreck = Wreck(state="TIMEOUT", end=20_000)
    wreck.networkd("gpu03", 3000, "ib1: Lost carrier")
    wreck.slurmctld(20_000, "Time limit exhausted for JobId=4711")
    assert wreck.diagnosed().what == "time-limit"


def test_whom_all_others_could_not_reach_is_named_and_not_who_ended_first() -> None:
    refused = "{0}:10:11 [0] misc/socket.cc:484 NCCL WARN Connect to {1}<56821> failed : Connection refused"
    wreck = Wreck(end=70)
    addresses(wreck)
    for node in ("gpu01", "gpu02", "gpu04"):
        wreck.out(refused.format(node, "10.0.0.3"), 40)
    wreck.out("srun: error: gpu01: task 0: Exited with exit code 1", 70)
    found = wreck.diagnosed()
    assert (found.what, found.nodes, found.at) == ("not-in-the-logs", (), "gpu03")
    assert "gpu03" in found.says
    lone = Wreck(end=70)
    addresses(lone)
    lone.out(refused.format("gpu02", "10.0.0.3"), 40)
    lone.out("srun: error: gpu02: task 4: Exited with exit code 1", 70)
    assert lone.diagnosed().at == "gpu02", "of one connection nothing tells which end it is"
