"""A private Kubernetes on the loopback: etcd, API server, controller manager, scheduler; with certificates of its own.

Everybody shows a certificate, also to etcd. All of it lies in one folder and ends with whoever started it, also by
SIGKILL. Nodes are declared to the API (`declare_node`), which is all that a scheduler needs; a real one, with kubelet
and containers, is `node.py`'s.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import httpx2
import trustme

from support.kube.build import place
from support.kube.client import Api, Object, Refused, condition
from support.ports import Ports
from support.processes import DIES_WITH_US

USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "kubelet-client": "system:masters",
}
"""Who talks to the API server: common name and organization, which are user and group to it."""


class ControlPlane:
    """Started by `with`; `enter` are words before each command, to run all of it in namespaces."""

    def __init__(self, enter: tuple[str, ...] = ()) -> None:
        self.enter = enter
        self.root = Path(tempfile.mkdtemp(prefix="fl-kube-", dir="/tmp"))
        self.bin = place() / "bin"
        self.ports = Ports()
        self.etcd, self.peers, self.port, self.manager, self.scheduler, self.kubelet = (
            self.ports.first + number for number in range(6)
        )
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.authority = trustme.CA()
        self.certificates = self.root / "certificates"
        self.certificates.mkdir(mode=0o700)
        self.ca = self.certificates / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        trustme.CA().private_key_pem.write_to_path(self.certificates / "accounts.pem")
        self.issue("server", "127.0.0.1", "localhost")
        for name, group in USERS.items():
            self.issue(name, user=name, group=group)
        self.url = f"https://127.0.0.1:{self.port}"
        self.api = Api(self.url, self.ca, self.certificates / "admin.pem")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Until pods can be created."""
        pem, own = self.certificates, f"--cert-dir={self.root}"
        server = f"{pem}/server.pem"
        self.run(
            "etcd", "--name=test", f"--data-dir={self.root}/etcd", "--logger=zap", "--log-level=warn",
            f"--listen-client-urls=https://127.0.0.1:{self.etcd}", f"--advertise-client-urls=https://127.0.0.1:{self.etcd}",
            f"--listen-peer-urls=https://127.0.0.1:{self.peers}",
            f"--initial-advertise-peer-urls=https://127.0.0.1:{self.peers}",
            f"--initial-cluster=test=https://127.0.0.1:{self.peers}", "--client-cert-auth", "--peer-client-cert-auth",
            *(f"--{side}trusted-ca-file={self.ca}" for side in ("", "peer-")),
            *(f"--{side}{kind}-file={server}" for side in ("", "peer-") for kind in ("cert", "key")),
        )  # fmt: skip
        self.run(
            "kube-apiserver", f"--etcd-servers=https://127.0.0.1:{self.etcd}", f"--etcd-cafile={self.ca}",
            f"--etcd-certfile={server}", f"--etcd-keyfile={server}", own, "--bind-address=127.0.0.1",
            f"--secure-port={self.port}", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            f"--tls-cert-file={server}", f"--tls-private-key-file={server}", f"--client-ca-file={self.ca}",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            "--service-cluster-ip-range=192.0.2.128/25", "--service-account-issuer=https://fairlead.test",
            f"--service-account-signing-key-file={pem}/accounts.pem", f"--service-account-key-file={pem}/accounts.pem",
            f"--kubelet-client-certificate={pem}/kubelet-client.pem", f"--kubelet-client-key={pem}/kubelet-client.pem",
            f"--kubelet-certificate-authority={self.ca}", "--kubelet-preferred-address-types=InternalIP",
        )  # fmt: skip
        self.until(self._is_ready, "the API server")
        self.run(
            "kube-controller-manager", f"--kubeconfig={self.config('system:kube-controller-manager')}", own,
            "--bind-address=127.0.0.1", f"--secure-port={self.manager}", "--port=0", "--leader-elect=false",
            f"--service-account-private-key-file={pem}/accounts.pem", f"--root-ca-file={self.ca}",
            "--use-service-account-credentials",
            # a declared node has no kubelet that reports every few seconds
            "--node-monitor-grace-period=24h",
        )  # fmt: skip
        self.run(
            "kube-scheduler", f"--kubeconfig={self.config('system:kube-scheduler')}", own, "--bind-address=127.0.0.1",
            f"--secure-port={self.scheduler}", "--port=0", "--leader-elect=false",
        )  # fmt: skip
        self.until(lambda: self._accounts("default"), "the controller manager")

    def stop(self) -> None:
        """End all of it, remove the folder."""
        self.api.close()
        for daemon in reversed(self.daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self.daemons.values()):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.root)
        self.ports.close()

    # ---- parts

    def issue(self, name: str, *hosts: str, user: str = "", group: str = "") -> Path:
        """A certificate with its key in one file."""
        # a certificate without any host would have an empty list of them, which Go refuses
        named = hosts or ("client.test",)
        made = self.authority.issue_cert(*named, common_name=user or None, organization_name=group or None)
        path = self.certificates / f"{name}.pem"
        made.private_key_and_cert_chain_pem.write_to_path(path)
        path.chmod(0o600)
        return path

    def config(self, user: str) -> Path:
        """A kubeconfig of a user that has a certificate; kubectl takes it, too."""
        pem = str(self.certificates / f"{user}.pem")
        whole = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": user, "user": {"client-certificate": pem, "client-key": pem}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        }
        path = self.root / f"{user.replace(':', '-')}.kubeconfig"
        path.write_text(json.dumps(whole))
        path.chmod(0o600)
        return path

    def run(self, name: str, *words: str, enter: tuple[str, ...] | None = None) -> subprocess.Popen[bytes]:
        """Start a program of ours; what it says lands in `NAME.log`."""
        with (self.root / f"{name}.log").open("wb") as log:
            self.daemons[name] = subprocess.Popen(
                [*DIES_WITH_US, *(self.enter if enter is None else enter), str(self.bin / name), *words],
                env={"PATH": f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.root)},
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.daemons[name]

    def until(self, is_so, what: str, limit_s: float = 120) -> None:
        """Wait for something; tell what the programs said where it does not come, or one of them ends."""
        deadline = time.monotonic() + limit_s
        while not is_so():
            gone = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            if gone or time.monotonic() > deadline:
                why = f"{' and '.join(gone)} ended" if gone else f"not there after {limit_s} s"
                raise TimeoutError(f"{what}: {why}\n{self.said()}")
            time.sleep(0.05)

    def said(self) -> str:
        """The last lines of every program's log."""
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in self.root.glob("*.log"))

    def _is_ready(self) -> bool:
        try:
            return self.api.ask("GET", "/readyz") == "ok"
        except (httpx2.TransportError, Refused):
            return False

    def _accounts(self, namespace: str) -> bool:
        try:
            return bool(self.api.get("v1", "ServiceAccount", "default", namespace).get("secrets"))
        except Refused:
            return False

    # ---- what tests put into it

    def namespace(self, name: str) -> str:
        """Make a namespace that pods can be created in."""
        self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.until(lambda: self._accounts(name), f"the service account of {name}")
        return name

    def declare_node(
        self,
        name: str,
        resources: dict[str, str],
        labels: dict[str, str] | None = None,
        taints: list[Object] | None = None,
    ) -> None:
        """A node as its kubelet would report it, without one: pods are bound to it and stay Pending there."""
        what = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        given = {"kubernetes.io/hostname": name, **(labels or {})}
        self.api.create({**what, "metadata": {"name": name, "labels": given}, "spec": {"taints": taints or []}})
        amounts = {"cpu": "96", "memory": "1900Gi", "pods": "110", "ephemeral-storage": "1000Gi", **resources}
        ready = {"type": "Ready", "status": "True", "reason": "Declared", "lastHeartbeatTime": _now()}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self.api.merge(what, {"status": status}, below="status")
        # the taint that every new node has goes when the controller manager sees it ready
        self.api.until(what, lambda node: condition(node, "Ready") and not _is_new(node))


def _is_new(node: Object) -> bool:
    return any(taint["key"] == "node.kubernetes.io/not-ready" for taint in node["spec"].get("taints", []))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
