"""The offline proof on vLLM itself: as it comes it asks around, with the settings of a bundle it calls nobody.

vLLM's workers on GPUs report usage once their device is there (vllm/v1/worker/gpu_worker.py, init_device), those on
CPUs do not. A plug-in, which is a package with an entry point (docs.vllm.ai, "Plugin System"), gives these the same
line, so that vLLM's own report is what calls.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.records.verdict import Verdict, aggregate
from fairlead.serve.image import OFFLINE
from fairlead.serve.proof.judge import judge
from fairlead.serve.proof.prove import prove
from support.tinymodel import CONTEXT, make_tiny

VLLM = os.environ.get("FAIRLEAD_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.requires("userns", "torch"),
    pytest.mark.skipif(not VLLM, reason="FAIRLEAD_VLLM_PYTHON names no Python that has vLLM"),
]
PLUG_IN = """
def load():
    from vllm.v1.utils import report_usage_stats
    from vllm.v1.worker.cpu_worker import CPUWorker

    begin = CPUWorker.init_device

    def init_device(self):
        begin(self)
        report_usage_stats(self.vllm_config)  # as gpu_worker.py does

    CPUWorker.init_device = init_device
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def vllm(tiny, tmp_path, monkeypatch):
    """Prove vLLM with such settings; (verdict, what it tried)."""
    plugs = tmp_path / "plugs"
    (plugs / "reports-1.dist-info").mkdir(parents=True)
    (plugs / "reports.py").write_text(PLUG_IN)
    (plugs / "reports-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: reports\nVersion: 1\n")
    (plugs / "reports-1.dist-info" / "entry_points.txt").write_text("[vllm.general_plugins]\nreports = reports:load\n")

    def run(**settings):
        for name in (*OFFLINE, "VLLM_HOST_IP"):
            monkeypatch.delenv(name, raising=False)
        own = {"PYTHONPATH": str(plugs), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CONFIG_ROOT": str(tmp_path / "config")}
        for name, value in (own | settings).items():
            monkeypatch.setenv(name, value)
        command = [VLLM, "-m", "vllm.entrypoints.cli.main", "serve", str(tiny), "--served-model-name", "tiny"]
        command += ["--port", "8000", "--enforce-eager", "--max-model-len", str(CONTEXT)]
        record = prove(command, log=tmp_path / "log", patience_s=900, watch_s=5)
        assert [asked.status for asked in record.asked] == [200] * 4, Path(tmp_path / "log").read_text()[-2000:]
        return aggregate(f.verdict for f in judge(record, ())), record.attempts

    return run


def test_with_the_settings_of_a_bundle_it_calls_nobody_though_it_could_report(vllm):
    verdict, attempts = vllm(**OFFLINE, VLLM_HOST_IP="127.0.0.1")
    assert (verdict, attempts) == (Verdict.PASS, ())


def test_its_own_report_of_usage_is_seen_where_it_is_left_on(vllm):
    settings = {name: value for name, value in OFFLINE.items() if name not in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")}
    verdict, attempts = vllm(**settings, VLLM_HOST_IP="127.0.0.1")
    assert verdict is Verdict.FAIL
    assert {(one.how, one.to) for one in attempts} == {("query", "dns:stats.vllm.ai")}
    assert all("vllm" in one.process.lower() for one in attempts)
