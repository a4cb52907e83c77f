"""One real node: containerd, runc and a kubelet, in namespaces of their own beside the control plane.

Images come from no registry: `image` writes one in the OCI's layout (github.com/opencontainers/image-spec), of Debian's
static busybox alone, under whatever name a manifest asks for.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from support.kube.build import place
from support.kube.client import Object, condition
from support.kube.control import ControlPlane
from support.kube.inside import ADDRESS, Inside

NODE = "n1"
IMAGE = "fairlead.test/busybox:1"
APPLETS = ("sh", "sleep", "cat", "ls", "env", "true", "false", "echo", "printf", "test", "stat", "sort", "ulimit")
_CONTAINERD = """
version = 2
root = "{root}/containerd/root"
state = "{root}/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{root}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true  # where root has no CAP_SYS_RESOURCE
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{bin}"
    conf_dir = "{root}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{bin}/runc"
"""
_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "test",
    "plugins": [
        {
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "subnet": "198.51.100.0/24",
                "dataDir": "/run/cni",
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}
"""Pods send all they have to the node, which has no way out: what they wanted there can be seen (`packets`)."""
_RESOLV = "nameserver 192.0.2.53\noptions timeout:1 attempts:1\n"
"""For pods: an address that nobody has (RFC 5737), so that a question for a name leaves the pod."""


class Cluster(ControlPlane):
    """A control plane and one node that runs what is bound to it. Root and cgroups of version 1 (`inside.look`)."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Inside(self.root, self.bin / "busybox")
        self.enter = self.inside.words
        self.inside.let_in(self.port)

    def start(self) -> None:
        """Until the node is ready."""
        super().start()
        socket = self.root / "containerd.sock"
        (self.root / "cni").mkdir()
        (self.root / "cni" / "10-test.conflist").write_text(json.dumps(_NETWORK))
        config = self.root / "containerd.toml"
        config.write_text(_CONTAINERD.format(root=self.root, bin=self.bin, image=IMAGE))
        self.run("containerd", f"--config={config}", "--log-level=warn")
        self.until(lambda: self.containers("version", check=False), "containerd")
        self.have_image(IMAGE)
        self.issue("kubelet", ADDRESS, NODE)
        self.issue(f"system:node:{NODE}", user=f"system:node:{NODE}", group="system:nodes")
        (self.root / "resolv.conf").write_text(_RESOLV)
        settings = self.root / "kubelet.json"
        settings.write_text(json.dumps(self._kubelet()))
        self.run(
            "kubelet", f"--config={settings}", f"--kubeconfig={self.config(f'system:node:{NODE}')}",
            f"--hostname-override={NODE}", f"--node-ip={ADDRESS}", f"--cert-dir={self.root}/kubelet",
            "--container-runtime=remote", f"--container-runtime-endpoint=unix://{socket}",
            f"--pod-infra-container-image={IMAGE}",
        )  # fmt: skip
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        self.until(lambda: self._is_up(node), "the node")

    def stop(self) -> None:
        """Pods first, so that nothing of them is mounted or runs when the rest goes."""
        try:
            self.inside.stop()
        finally:
            super().stop()

    def have_image(self, name: str) -> None:
        """Put the image in the node's store under a name."""
        archive = self.root / "image.tar"
        archive.write_bytes(image(name))
        self.containers("images", "import", str(archive))
        archive.unlink()

    def containers(self, *words: str, check: bool = True, limit_s: float = 60) -> str:
        """What containerd's own client prints; empty where it fails and may."""
        said = subprocess.run(
            [*self.enter, str(self.bin / "ctr"), "-a", str(self.root / "containerd.sock"), "-n", "k8s.io", *words],
            capture_output=True, text=True, timeout=limit_s,
        )  # fmt: skip
        assert not check or said.returncode == 0, said.stderr
        return said.stdout if said.returncode == 0 else ""

    @property
    def plugins(self) -> Path:
        """Where the kubelet looks for device plugins, seen from outside."""
        return self.root / "var/lib/kubelet/device-plugins"

    def allocatable(self) -> dict[str, str]:
        """What the node says it has."""
        return self.api.get("v1", "Node", NODE)["status"]["allocatable"]

    def _is_up(self, node: Object) -> bool:
        found = self.api.list("v1", "Node")
        return any(
            condition(row, "Ready").get("status") == "True" and not row["spec"].get("taints")
            for row in found
            if row["metadata"]["name"] == node["metadata"]["name"]
        )

    def _kubelet(self) -> dict[str, Any]:
        """KubeletConfiguration, v1beta1."""
        pem = f"{self.certificates}/kubelet.pem"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "port": self.kubelet,
            "readOnlyPort": 0,
            "resolvConf": str(self.root / "resolv.conf"),
            "healthzPort": 0,
            "tlsCertFile": pem,
            "tlsPrivateKeyFile": pem,
            "authentication": {
                "x509": {"clientCAFile": str(self.ca)},
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.inside.cgroup}",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "protectKernelDefaults": True,
            "volumePluginDir": str(self.root / "volumes"),
            # a machine that is nearly full is no reason to evict: what runs here is small
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "fileCheckFrequency": "1s",
            "syncFrequency": "5s",
        }


def image(name: str) -> bytes:
    """An OCI image layout as a tar: one layer, busybox and its names."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("bin", "tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        tar.add(
            place() / "bin" / "busybox", "bin/busybox", filter=lambda entry: entry.replace(mode=0o755, uid=0, gid=0)
        )
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(data: bytes, kind: str) -> Object:
        digest = hashlib.sha256(data).hexdigest()
        files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    where = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os": "linux",
    }
    body = layer.getvalue()
    config = {
        **where,
        "config": {"Cmd": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(body).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(body, "layer.v1.tar")],
    }
    named = {**blob(json.dumps(manifest).encode(), "manifest.v1+json"), "platform": where}
    named["annotations"] = {"io.containerd.image.name": name}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [named]}).encode()
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return whole.getvalue()
