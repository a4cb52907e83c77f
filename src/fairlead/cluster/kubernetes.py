"""Nodes reached through Kubernetes: the user's own kubectl and kubeconfig, into pods that stand on the nodes already.

fairlead makes no pods of its own here. A node of the cluster file is a pod of that name (the workers of a job), or the
one pod of `selector` on the node of that name (a DaemonSet). What a command sees there is what the pod is given.
`kubectl exec`: https://kubernetes.io/docs/reference/kubectl/generated/kubectl_exec/
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.backend import Backend, last_line
from fairlead.cluster.child import capture
from fairlead.cluster.protocol import Refusal, State
from fairlead.cluster.table import DNS_LABEL, DNS_SUBDOMAIN, Kubernetes
from fairlead.errors import ClusterError, MissingTool

_ASK_S = 30.0

_FAULTS: tuple[tuple[str, str, str], ...] = (
    (r"\(Forbidden\)", "you may not run things in pods there", "kubectl auth can-i create pods/exec"),
    (r"\(NotFound\)|pods? .* not found", "its pod is gone", "kubectl get pods -o wide"),
    (r"container not found|cannot exec in a stopped|completed pod", "its container does not run",
     "kubectl describe pod POD"),
    (r"error dialing backend", "the API server does not reach its kubelet", "kubectl describe node NODE"),
    (r"Unauthorized|must be logged in|provide credentials", "the API server does not know you", "kubectl auth whoami"),
    ((r"Unable to connect to the server|connection (?:to the server .* was )?refused|i/o timeout|no such host|"
      r"TLS handshake timeout"), "the API server does not answer", "kubectl version"),
)  # fmt: skip
"""What kubectl prints, what it means, what to type next. The first that fits."""


_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""The annotation with which a pod says where `kubectl exec` goes:
https://kubernetes.io/docs/reference/labels-annotations-taints/"""


class _Named(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(pattern=DNS_SUBDOMAIN, max_length=253)]
    deletionTimestamp: str | None = None  # noqa: N815 - names of the API
    annotations: dict[str, str] | None = None


class _Container(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(pattern=DNS_LABEL, max_length=63)]


class _PodSpec(msgspec.Struct):
    containers: Annotated[tuple[_Container, ...], msgspec.Meta(min_length=1)]
    nodeName: str = ""  # noqa: N815


class _PodStatus(msgspec.Struct):
    phase: str = ""


class Pod(msgspec.Struct):
    """What is read of a pod: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/."""

    metadata: _Named
    spec: _PodSpec
    status: _PodStatus

    @property
    def runs(self) -> bool:
        """Whether commands can be run in it; its containers may still be starting."""
        return self.status.phase == "Running" and not self.metadata.deletionTimestamp

    @property
    def container(self) -> str:
        """The one that kubectl would choose."""
        names = [container.name for container in self.spec.containers]
        asked = (self.metadata.annotations or {}).get(_DEFAULT_CONTAINER)
        return asked if asked in names else names[0]


class _Pods(msgspec.Struct):
    items: tuple[Pod, ...]


def choose(nodes: Iterable[str], pods: Sequence[Pod]) -> tuple[dict[str, Pod], dict[str, Refusal]]:
    """The pod of each node, and why another has none. A pod of the node's name comes before one that stands on it."""
    nodes = list(nodes)
    named = {pod.metadata.name: pod for pod in pods}
    own = {node: named[node] for node in nodes if node in named}
    on: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        on[pod.spec.nodeName].append(pod)
    chosen: dict[str, Pod] = {}
    refused: dict[str, Refusal] = {}
    for node in nodes:
        there = [own[node]] if node in own else on[node]
        running = [pod for pod in there if pod.runs]
        names = ", ".join(sorted(pod.metadata.name for pod in running))
        if len(running) == 1 and node not in own and running[0].metadata.name in own:
            text = f"the only pod that fits there, {names}, is a node of the cluster file itself"
            refused[node] = Refusal(State.UNREACHABLE, text, "either the pods or the machines in `nodes`, not both")
        elif len(running) == 1:
            chosen[node] = running[0]
        elif running:
            text = f"{len(running)} pods that fit stand on it: {names}"
            refused[node] = Refusal(State.UNREACHABLE, text, "a narrower `selector` in [kubernetes]")
        elif there:
            pod = there[0]
            how = "is being deleted" if pod.metadata.deletionTimestamp else f"is {pod.status.phase or 'in no phase'}"
            text, hint = f"its pod {pod.metadata.name} {how}", f"kubectl describe pod {pod.metadata.name}"
            refused[node] = Refusal(State.UNREACHABLE, text, hint)
        else:
            text = "no pod that fits has its name or stands on it"
            refused[node] = Refusal(
                State.UNREACHABLE, text, "kubectl get pods -o wide; [kubernetes] in the cluster file"
            )
    return chosen, refused


class KubernetesBackend(Backend):
    """One `kubectl exec` a node."""

    name = "kubernetes"

    def __init__(self, settings: Kubernetes, *, reach_s: float = 10.0) -> None:
        """`reach_s`: how long the API server and the kubelet may take to let a command in."""
        self._settings = settings
        self.reach_s = reach_s
        context = ("--context", settings.context) if settings.context else ()
        self._kubectl = ("kubectl", *context, "--namespace", settings.namespace)
        self._pod_of: dict[str, Pod] = {}

    def wrap(self, node: str, argv: Sequence[str]) -> list[str]:
        """Into the pod that `ready` found."""
        pod = self._pod_of[node]
        container = self._settings.container or pod.container
        return [*self._kubectl, "exec", "--stdin", pod.metadata.name, "--container", container, "--", *argv]

    async def ready(self, nodes: NodeSet) -> Mapping[str, Refusal]:
        """Ask once which pods there are; they may have moved since the last call."""
        if not shutil.which("kubectl"):
            raise MissingTool(
                "cluster/no-tool", "there is no kubectl on this machine", hint="kubernetes.io/docs/tasks/tools"
            )
        chosen_by = ("--selector", self._settings.selector) if self._settings.selector else ()
        words = [*self._kubectl, "get", "pods", *chosen_by, "--output=json", f"--request-timeout={_ASK_S:.0f}s"]
        done = await capture(words, limit_s=_ASK_S + 5)
        if done.rc != 0:
            raise ClusterError(
                "cluster/kubernetes-silent",
                f"Kubernetes does not say which pods there are: {last_line(done.err) or 'no answer'}",
                hint=f"{' '.join(self._kubectl)} get pods",
            )
        try:
            pods = msgspec.json.decode(done.out, type=_Pods).items
        except msgspec.MsgspecError as error:
            raise ClusterError(
                "cluster/kubernetes-silent",
                f"what kubectl says of pods is no list of pods: {error}",
                hint=f"{' '.join(self._kubectl)} get pods --output=json",
            ) from None
        chosen, refused = choose(nodes, pods)
        self._pod_of |= chosen
        return refused

    def explain(self, node: str, rc: int | None, said: str) -> Refusal:
        """From kubectl's own words; another status than 1 came from the command."""
        for pattern, meaning, hint in _FAULTS:
            if re.search(pattern, said):
                return Refusal(State.UNREACHABLE, meaning, hint)
        return self.explain_python(rc, said) or Refusal(
            State.UNREACHABLE, last_line(said) or "kubectl exec failed without a word", "kubectl exec POD -- true"
        )
