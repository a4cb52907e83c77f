"""What `weights kubernetes` writes: valid for the API server, without keys, with no more rights than needed."""

from __future__ import annotations

import json
import os

import pytest

from fairlead.weights.pods import pods_of
from support.examples import HERE

kubeschemas = pytest.importorskip("support.kubeschemas", reason="needs kubernetes-validate: group `dev`")
yaml = pytest.importorskip("yaml", reason="needs PyYAML: extra `plan`")

SETTINGS = '\n[kubernetes]\nnamespace = "ml"\nselector = "app=weights,team=a"\ncontainer = "node"\n'
FILE = HERE.replace('via = "local"', f'via = "kubernetes"{SETTINGS}').replace("localhost", "gpu-[0-2]")
IMAGE = "registry.site/fairlead@sha256:" + "a" * 64


@pytest.fixture
def written(tmp_path, fairlead):
    """Calls the verb; gives its status, its document, and the objects by kind."""

    def call(*more: str, file: str = FILE, source: str = "az://models/llama", dest: str = "/mnt/nvme/llama"):
        (tmp_path / "cluster.toml").write_text(file)
        words = ["weights", "kubernetes", source, dest, str(tmp_path / "k8s"), "--image", IMAGE, *more]
        done = fairlead(*words, "-f", str(tmp_path / "cluster.toml"), "--json")
        paths = sorted((tmp_path / "k8s").glob("*.yaml"))
        made = [each for path in paths for each in yaml.safe_load_all(path.read_text())]
        return done.status, done.document, {each["kind"]: each for each in made}

    return call


@pytest.mark.parametrize("release", ["1.34", "1.37"])
def test_every_object_is_valid_for_the_api_servers_own_schemas(written, release) -> None:
    status, document, made = written("--secret", "origin", "--host-network")
    assert (status, document["nodes"], len(document["files"])) == (0, 3, 3)
    assert set(made) == {"DaemonSet", "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Job"}
    assert {kind: kubeschemas.problems_of(each, release) for kind, each in made.items()} == {kind: [] for kind in made}
    assert {each["metadata"]["namespace"] for each in made.values()} == {"ml"}


def test_pods_stand_on_the_nodes_of_the_file_and_are_those_that_the_file_chooses(written) -> None:
    _, _, made = written()
    daemons = made["DaemonSet"]["spec"]
    pod = daemons["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["gpu-0"], ["gpu-1"], ["gpu-2"]]
    assert daemons["selector"]["matchLabels"] == daemons["template"]["metadata"]["labels"]
    assert daemons["template"]["metadata"]["labels"] == {"app": "weights", "team": "a"}
    assert pod["containers"][0]["name"] == "node"
    assert pod["volumes"] == [{"name": "model", "hostPath": {"path": "/mnt/nvme/llama", "type": "DirectoryOrCreate"}}]
    assert "hostNetwork" not in pod


USERS = {
    "Pod": ("v1", {"spec": {"containers": []}}),
    "Deployment": ("apps/v1", {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}}}),
    "CronJob": ("batch/v1", {"spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": {
        "spec": {"restartPolicy": "Never", "containers": []}}}}}}),
}  # fmt: skip


def user(kind: str) -> dict:
    """A manifest whose pods have a container, one that came first and a volume."""
    version, rest = USERS[kind]
    made = json.loads(json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": "server"}, **rest}))
    (pod,) = pods_of(made)
    pod["containers"] += [{"name": "server", "image": "i", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}]
    pod["initContainers"] = [{"name": "own", "image": "i"}]
    pod["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    return made


@pytest.mark.parametrize("release", ["1.34", "1.37"])
@pytest.mark.parametrize("kind", list(USERS))
def test_pods_that_use_the_model_are_held_by_an_init_container_until_it_is_there(written, tmp_path, kind, release):
    source = tmp_path / "server.yaml"
    source.write_text(yaml.safe_dump(user(kind)))
    status, document, made = written("--used-by", str(source), "--root", "a" * 64)
    assert (status, document["files"][-1]) == (0, "40-server.yaml")
    assert kubeschemas.problems_of(made[kind], release) == []
    (pod,) = pods_of(made[kind])
    first, own = pod["initContainers"]
    assert (first["command"][3:], own["name"]) == (["/mnt/nvme/llama", "a" * 64], "own")
    mount = {"name": "fairlead-model", "mountPath": "/mnt/nvme/llama", "readOnly": True}
    assert first["volumeMounts"] == [mount]
    assert mount in pod["containers"][0]["volumeMounts"]
    assert [v["name"] for v in pod["volumes"]] == ["tmp", "fairlead-model"]
    again = tmp_path / "again" / "server.yaml"
    again.parent.mkdir()
    again.write_text((tmp_path / "k8s/40-server.yaml").read_text())
    _, _, twice = written("--used-by", str(again), "--root", "a" * 64)
    assert twice[kind] == made[kind], "what was held is held once"
    status, document, _ = written("--used-by", str(source), "--used-by", str(again))
    assert (status, "two manifests would be 40-server.yaml" in document["error"]["message"]) == (2, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [("kind: ConfigMap\n", "no pod in it"), ("a: [", "is no manifest"), (None, "is no manifest")],
)
def test_what_has_no_pods_is_refused_and_nothing_is_written(written, tmp_path, text, says):
    source = tmp_path / "server.yaml"
    if text is not None:
        source.write_text(text)
    status, document, made = written("--used-by", str(source))
    assert (status, made) == (2, {})
    assert says in document["error"]["message"]


def test_nobody_else_can_change_what_is_to_be_applied(tmp_path, fairlead) -> None:
    """With any umask; in a folder where others may exchange files it is said."""
    (tmp_path / "cluster.toml").write_text(FILE)
    words = ["weights", "kubernetes", "az://models/llama", "/mnt/nvme/llama"]
    rest = ["--image", IMAGE, "-f", str(tmp_path / "cluster.toml")]
    before = os.umask(0)
    try:
        own = fairlead(*words, str(tmp_path / "k8s"), *rest)
        (tmp_path / "open").mkdir(mode=0o777)
        shared = fairlead(*words, str(tmp_path / "open"), *rest)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "k8s").iterdir()} == {0o644}
    assert (tmp_path / "k8s").stat().st_mode & 0o022 == 0
    assert "others may change" not in own.out
    assert "others may change" in shared.out


def test_the_job_has_the_file_as_it_is_and_may_do_one_thing(written) -> None:
    _, _, made = written("--secret", "origin", "-w", "gpu-[0-1]")
    assert made["ConfigMap"]["data"]["cluster.toml"] == FILE
    (container,) = made["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][:7] == [
        "fairlead", "weights", "spread", "az://models/llama", "/mnt/nvme/llama", "-f", "/etc/fairlead/cluster.toml",
    ]  # fmt: skip
    assert container["command"][7:9] == ["-w", "gpu-[0-1]"]
    assert container["envFrom"] == [{"secretRef": {"name": "origin"}}]
    assert "envFrom" not in made["DaemonSet"]["spec"]["template"]["spec"]["containers"][0], "nodes get no key"
    rules = made["Role"]["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == {"pods", "pods/exec"}
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "create"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"source": "https://store.example/m?sig=abcdefghijklmnopqrstuvwxyz0123456789"}, "no place for a secret"),
        ({"dest": "models"}, "no folder below another one"),
        ({"dest": "/"}, "no folder below another one"),
        ({"dest": "/mnt/../etc/x"}, "no folder below another one"),
        ({"file": HERE}, "reaches its nodes by local"),
        ({"file": FILE.replace("app=weights,team=a", "")}, "names no labels"),
        ({"file": FILE.replace("app=weights,team=a", "app in (a, b)")}, "names no labels"),
        ({"file": FILE.replace("[kubernetes]", '[kubernetes]\ncontext = "aks"')}, "a Job has no kubeconfig"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_written(written, change, says) -> None:
    status, document, made = written(**change)
    assert (status, made) == (2, {})
    assert says in document["error"]["message"]
