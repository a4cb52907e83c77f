"""Each trap is found in manifests modelled on published ones, where it stands, and nothing else is."""

from __future__ import annotations

import pytest

from fairlead.plan.kubernetes import variants
from fairlead.plan.lint.judge import lint_paths
from fairlead.records.codes import explanations
from fairlead.records.verdict import Verdict
from support.traps import IPOIB, LIVE, MANAGED, SLOTS, TRAPS, WELL

BAD = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)
WHOLES = {"sriov": WELL, "ipoib": IPOIB, "shared": SLOTS, "managed": MANAGED, "live": LIVE}


def lint(tmp_path, files, sizes=()):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return lint_paths([tmp_path], sizes=sizes)


def hits(result):
    return [f for f in result.findings if f.verdict in BAD]


@pytest.mark.parametrize("name", WHOLES)
def test_a_whole_that_holds_has_no_trap(tmp_path, name):
    assert [str(f) for f in hits(lint(tmp_path, WHOLES[name]))] == []


@pytest.mark.parametrize("trap", TRAPS, ids=lambda t: f"{t.code}: {t.source[:40]}")
def test_a_trap_is_found_where_it_stands(tmp_path, trap):
    before = lint(tmp_path / "well", trap.base)
    assert [f for f in hits(before) if f.code == trap.code] == []
    found = hits(lint(tmp_path / "bad", trap.bad()))
    assert {f.code for f in found} - set(trap.also) == {trap.code}
    if trap.at:
        mine = next(f for f in found if f.code == trap.code)
        lines = {f.data["line"] for f in found if f.code == trap.code and f.data["file"].endswith(trap.file)}
        text = trap.bad()[trap.file].splitlines()
        assert any(trap.at in text[line - 1] for line in lines), (mine.subject, lines)
        assert mine.evidence
        assert mine.remedy


def test_every_rule_has_a_trap():
    uttered = {code for code in explanations() if code.startswith("plan/")}
    lint_codes = uttered & {t.code for t in TRAPS}
    others = {
        "plan/choice", "plan/network", "plan/storage", "plan/changed-by-hand", "plan/skus", "plan/nothing-asked",
        "plan/no-pool",
        "plan/no-number", "plan/no-size", "plan/no-network", "plan/mig-and-slices", "plan/no-ipoib", "plan/no-range",
        "plan/groups", "plan/blocks", "plan/folder", "plan/no-files", "plan/yaml", "plan/key-twice",
        # of closed sites: test_offline.py
        "plan/public-load-balancer", "plan/public-registry", "plan/key-in-manifest", "plan/online-settings",
    }  # fmt: skip
    assert uttered - others == lint_codes


def test_a_pass_is_said_of_what_was_looked_at(tmp_path):
    """Every code that a trap of this whole breaks is a pass here: none is silent because nothing was looked at."""
    passed = {f.code for f in lint(tmp_path, WELL).findings if f.verdict is Verdict.PASS}
    assert {t.code for t in TRAPS if t.base is WELL} - passed == set()


def test_what_is_not_known_is_skipped_and_says_why(tmp_path):
    job = WELL["job.yaml"].replace(
        "          nodeSelector:\n            node.kubernetes.io/instance-type: Standard_ND96isr_H100_v5\n", ""
    )
    result = lint(tmp_path, {"job.yaml": job, "env.yaml": WELL["env.yaml"]})
    skipped = {f.code: f.message for f in result.findings if f.verdict is Verdict.SKIP}
    assert {"plan/no-such-resource", "plan/too-many", "plan/topology-file", "plan/no-rdma-size"} <= set(skipped)
    assert "--size" in skipped["plan/too-many"]
    told = lint(tmp_path, {"job.yaml": job}, sizes=["Standard_ND96isr_H100_v5"])
    assert "plan/too-many" not in {f.code for f in told.findings if f.verdict is Verdict.SKIP}


def test_options_that_are_passed_on_are_not_guessed(tmp_path):
    """deploy-aks.sh adds "$@" to the call that makes a pool: the file does not say what it holds."""
    script = WELL["setup.sh"].replace("--gpu-driver none", '"$@"')
    found = lint(tmp_path, {**WELL, "setup.sh": script}).findings
    (said,) = [f for f in found if f.code == "plan/two-drivers"]
    assert said.verdict is Verdict.SKIP


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a:\n  b: 1\n c: 2\n", 3, 2),
        ("a: [1, 2\nb: 3\n", 2, 2),
        ('kind: "Pod\n', 2, 1),
        ("a: *nobody\n", 1, 4),
        ("a:\n\t- b\n", 2, 1),
        ("spec:\n  replicas: {{ .Values.x }}\n", 2, 14),
        ("spec:\n  {{- if .Values.x }}\n", 2, 5),
    ],
)
def test_no_yaml_is_told_with_line_and_column(tmp_path, text, line, column):
    (said,) = hits(lint(tmp_path, {"x.yaml": text}))
    assert (said.code, said.verdict) == ("plan/yaml", Verdict.UNKNOWN)
    assert (said.data["line"], said.data["column"]) == (line, column)
    assert ("helm template" in said.remedy) == ("{{" in text)


def test_a_key_that_stands_twice_is_named(tmp_path):
    (said,) = hits(lint(tmp_path, {"x.yaml": "kind: Pod\nspec:\n  a: 1\n  a: 2\n"}))
    assert (said.code, said.data["line"], said.data["column"]) == ("plan/key-twice", 4, 3)


@pytest.mark.parametrize(
    "raw",
    [
        b"a: &a [*a]\n",
        b"\xff\xfe\x00\x01binary",
        b"a: " + b"[" * 5000 + b"]" * 5000,
        (
            "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
        ).encode(),
        b"? {a: 1}\n: b\nkind: Pod\nmetadata: []\nspec: 3\n",
        (
            b"kind: MPIJob\nspec: {slotsPerWorker: x, mpiReplicaSpecs: {Worker: {replicas: two, template: {spec:\n"
            b"  {containers: [1, {resources: 3}]}}}}}\n"
        ),
        b"kind: NicClusterPolicy\nspec: {sriovDevicePlugin: {config: '{', version: 7}, ofedDriver: []}\n",
        b'kind: IPoIBNetwork\nspec: {ipam: \'{"range": "999.1.1.1/8"}\', master: 3}\n',
        b"!!python/object/apply:os.system ['echo hi']\n",
        b"kind: List\nitems: 5\n",
    ],
)
def test_bad_bytes_are_a_finding_or_nothing_never_an_exception(tmp_path, raw):
    (tmp_path / "x.yaml").write_bytes(raw)
    for said in lint_paths([tmp_path], sizes=["Standard_ND96isr_H100_v5"]).findings:
        assert said.verdict is not Verdict.PASS or b"spec" in raw


def test_what_the_writers_write_has_no_trap(tmp_path):
    """Every variant of our own, with the script that makes its pool, is free of every trap."""
    from fairlead.base.nodeset import NodeSet
    from fairlead.plan.azure.aks import aks
    from fairlead.plan.kubernetes.variant import variant_of
    from fairlead.plan.table import PlanTable
    from fairlead.plan.wanted import PoolWanted, Wanted
    from fairlead.spec.model import Fabric
    from fairlead.spec.vmsize import size

    num = 0
    for variant in variants():
        name = next(n for n in variant.about.split(", ") if n.startswith("Standard_"))
        pool = PoolWanted(name="pool", nodes=NodeSet("n-[0-3]"), size=size(name))
        network, driver = variant.about.split(", ")[:2]
        said = PlanTable(network=network.split()[0], gpu_driver=driver.split()[0])
        if "-mig-" in variant.name or "-slices-" in variant.name:
            continue
        wanted = Wanted(cluster="c", pools=(pool,), said=said, fabric=Fabric())
        files = {**variant.files, **{f.path: f.text for f in aks(wanted, variant_of(wanted))}}
        found = [str(f) for f in hits(lint(tmp_path / variant.name, files))]
        assert found == [], variant.name
        num += 1
    assert num > 100
