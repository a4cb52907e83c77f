"""Manifests, values and scripts as people publish them, well, and each with one trap in it.

The well ones follow Azure/aks-rdma-infiniband (configs/, tests/scenarios/k8s/templates as Helm renders them,
tests/setup-infra, commit 700dabb), Mellanox/network-operator (example/, tag v26.4.0) and kubernetes-sigs/dranet
(examples/azure_aks_examples), written anew; where those have a trap themselves, the well one is without it and the
`source` of the trap names the file that has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

POLICY = """\
apiVersion: mellanox.com/v1alpha1
kind: NicClusterPolicy
metadata:
  name: nic-cluster-policy
spec:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        - key: feature.node.kubernetes.io/pci-15b3.present
          operator: In
          values: ["true"]
  ofedDriver:
    repository: nvcr.io/nvidia/mellanox
    image: doca-driver
    version: doca3.4.0-26.04-0.8.6.0-0
  sriovDevicePlugin:
    repository: nvcr.io/nvidia/mellanox
    image: sriov-network-device-plugin
    version: network-operator-v26.4.0
    config: |
      {
        "resourceList": [
          {"resourcePrefix": "rdma", "resourceName": "ib",
           "selectors": {"vendors": ["15b3"], "linkTypes": ["infiniband"], "isRdma": true}}
        ]
      }
"""

SHARED_POLICY = """\
apiVersion: mellanox.com/v1alpha1
kind: NicClusterPolicy
metadata:
  name: nic-cluster-policy
spec:
  ofedDriver:
    repository: nvcr.io/nvidia/mellanox
    image: doca-driver
    version: doca3.4.0-26.04-0.8.6.0-0
  rdmaSharedDevicePlugin:
    repository: nvcr.io/nvidia/mellanox
    image: k8s-rdma-shared-dev-plugin
    version: network-operator-v26.4.0
    config: |
      {"configList": [{"resourceName": "shared_ib", "rdmaHcaMax": 63,
        "selectors": {"vendors": ["15b3"], "linkTypes": ["infiniband"]}}]}
"""

IPOIB_POLICY = (
    SHARED_POLICY
    + """\
  nvIpam:
    repository: nvcr.io/nvidia/mellanox
    image: nvidia-k8s-ipam
    version: network-operator-v26.4.0
  secondaryNetwork:
    cniPlugins:
      repository: nvcr.io/nvidia/mellanox
      image: plugins
      version: network-operator-v26.4.0
    multus:
      repository: nvcr.io/nvidia/mellanox
      image: multus-cni
      version: network-operator-v26.4.0
    ipoib:
      repository: nvcr.io/nvidia/mellanox
      image: ipoib-cni
      version: network-operator-v26.4.0
"""
)

IPOIB_NETWORK = """\
apiVersion: nv-ipam.nvidia.com/v1alpha1
kind: IPPool
metadata:
  name: ib-pool
  namespace: network-operator
spec:
  subnet: 192.168.0.0/24
  perNodeBlockSize: 50
  gateway: 192.168.0.1
---
apiVersion: mellanox.com/v1alpha1
kind: IPoIBNetwork
metadata:
  name: aks-infiniband
spec:
  networkNamespace: "default"
  master: "ibP257p0s0"
  ipam: |
    {
      "type": "nv-ipam",
      "poolName": "ib-pool"
    }
"""

RULE = """\
apiVersion: nfd.k8s-sigs.io/v1alpha1
kind: NodeFeatureRule
metadata:
  name: nfd-network-rule
spec:
  rules:
  - name: "nfd-network-rule"
    labels:
      "feature.node.kubernetes.io/pci-15b3.present": "true"
    matchFeatures:
    - feature: pci.device
      matchExpressions:
        vendor: {op: In, value: ["15b3"]}
        class: {op: In, value: ["0207"]}
"""

TOPOLOGY = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: nvidia-topology
data:
  topo.xml: |
    <system version="1">
      <cpu numaid="0" affinity="00000000,0000ffff,ffffffff" arch="x86_64">
        <pci busid="0001:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
        <pci busid="0002:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
        <pci busid="0003:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
        <pci busid="0008:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
        <pci busid="0101:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
      </cpu>
      <cpu numaid="1" affinity="ffffffff,ffff0000,00000000" arch="x86_64">
        <pci busid="0009:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
        <pci busid="000a:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
        <pci busid="000b:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
        <pci busid="000c:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      </cpu>
    </system>
"""

MPIJOB = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: nccl-tests
  labels:
    app: nccl-tests
spec:
  slotsPerWorker: 8
  runPolicy:
    cleanPodPolicy: Running
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          restartPolicy: OnFailure
          containers:
          - image: ghcr.io/azure/aks-rdma-infiniband/nccl-tests
            name: nccl
            envFrom:
            - configMapRef:
                name: nccl-env-vars
            command:
            - /bin/bash
            - -c
            args:
            - |
              set -xe
              mpirun \\
                -np 16 \\
                -bind-to none \\
                -x NCCL_IB_DISABLE=${NCCL_IB_DISABLE} \\
                -x CUDA_DEVICE_ORDER=PCI_BUS_ID \\
                -x NCCL_TOPO_FILE=/opt/nvidia-topology/topo.xml \\
                -x NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME} \\
                  /opt/nccl_tests/build/all_reduce_perf \\
                    -c 1 \\
                    -b 8 \\
                    -e 16G \\
                    -f 4 \\
                    -g 1 \\
                    -n 10
            resources:
              requests:
                cpu: 50m
                memory: 128Mi
    Worker:
      replicas: 2
      template:
        metadata:
          labels:
            task: test
        spec:
          nodeSelector:
            node.kubernetes.io/instance-type: Standard_ND96isr_H100_v5
          tolerations:
          - key: sku
            operator: Equal
            value: gpu
            effect: NoSchedule
          containers:
          - image: ghcr.io/azure/aks-rdma-infiniband/nccl-tests
            name: nccl
            resources:
              limits:
                nvidia.com/gpu: 8
                rdma/ib: 8
              requests:
                nvidia.com/gpu: 8
                rdma/ib: 8
            securityContext:
              capabilities:
                add:
                - IPC_LOCK
            volumeMounts:
            - name: shm
              mountPath: /dev/shm
            - name: nvidia-topology
              mountPath: /opt/nvidia-topology
          volumes:
          - name: shm
            emptyDir:
              medium: Memory
          - name: nvidia-topology
            configMap:
              name: nvidia-topology
              items:
              - key: topo.xml
                path: topo.xml
          affinity:
            podAntiAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
              - labelSelector:
                  matchExpressions:
                  - key: task
                    operator: In
                    values:
                    - test
                topologyKey: kubernetes.io/hostname
"""

ENV = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: nccl-env-vars
data:
  NCCL_IB_DISABLE: "0"
  NCCL_SOCKET_IFNAME: eth0
"""

IPOIB_JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: worker
spec:
  template:
    metadata:
      annotations:
        k8s.v1.cni.cncf.io/networks: aks-infiniband
    spec:
      nodeSelector:
        node.kubernetes.io/instance-type: Standard_ND96isr_H100_v5
      containers:
      - name: runner
        image: ghcr.io/azure/aks-rdma-infiniband/ibtools:latest
        env:
        - name: NCCL_SOCKET_IFNAME
          value: net1
      restartPolicy: Never
"""

PLAIN_JOB = IPOIB_JOB.replace("k8s.v1.cni.cncf.io/networks: aks-infiniband", "other: x").replace("net1", "eth0")

GPU_VALUES = """\
nfd:
  enabled: false
driver:
  rdma:
    enabled: true
migManager:
  enabled: false
vgpuDeviceManager:
  enabled: false
dcgmExporter:
  serviceMonitor:
    enabled: true
"""

NETWORK_VALUES = """\
nfd:
  deployNodeFeatureRules: false
"""

SCRIPT = """\
#!/usr/bin/env bash
set -euo pipefail
: "${AZURE_RESOURCE_GROUP:=ib-test}"
: "${NETWORK_OPERATOR_VERSION:=v26.4.0}"
export NODE_POOL_VM_SIZE="Standard_ND96isr_H100_v5"
az feature register --name AKSInfinibandSupport --namespace Microsoft.ContainerService
az aks create --resource-group "${AZURE_RESOURCE_GROUP}" --name ib-aks-cluster --node-count 1 --generate-ssh-keys
az aks nodepool add \\
    --name ibnodepool \\
    --resource-group "${AZURE_RESOURCE_GROUP}" \\
    --cluster-name ib-aks-cluster \\
    --node-count 2 \\
    --node-vm-size "${NODE_POOL_VM_SIZE}" \\
    --os-sku Ubuntu \\
    --node-taints sku=gpu:NoSchedule \\
    --gpu-driver none
kubectl create ns network-operator
kubectl label --overwrite ns network-operator pod-security.kubernetes.io/enforce=privileged
kubectl create ns gpu-operator
kubectl label --overwrite ns gpu-operator pod-security.kubernetes.io/enforce=privileged
helm upgrade -i --wait -n network-operator --values network-operator/values.yaml \\
    network-operator nvidia/network-operator --version "${NETWORK_OPERATOR_VERSION}"
helm upgrade -i --wait -n gpu-operator --values gpu-operator/values.yaml \\
    gpu-operator nvidia/gpu-operator --version v26.3.3
"""

WELL = {
    "policy.yaml": POLICY,
    "rule.yaml": RULE,
    "topology.yaml": TOPOLOGY,
    "job.yaml": MPIJOB,
    "env.yaml": ENV,
    "gpu-operator/values.yaml": GPU_VALUES,
    "network-operator/values.yaml": NETWORK_VALUES,
    "setup.sh": SCRIPT,
}
"""A whole that holds: eight GPUs and eight ports a pod, on ND H100 v5."""

IPOIB = {"policy.yaml": IPOIB_POLICY, "network.yaml": IPOIB_NETWORK, "job.yaml": IPOIB_JOB}
"""IP over InfiniBand, that holds."""

SLOTS = {
    "policy.yaml": SHARED_POLICY,
    "job.yaml": MPIJOB.replace("rdma/ib: 8", "rdma/shared_ib: 1"),
    "env.yaml": ENV,
    "topology.yaml": TOPOLOGY,
}
"""Ports that pods share, that holds."""

MANAGED = {
    "setup.sh": SCRIPT.replace(" \\\n    --gpu-driver none", "").partition("kubectl create ns gpu-operator")[0],
    "peermem.yaml": """\
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: nvidia-peermem-reloader
  namespace: gpu-resources
spec:
  selector:
    matchLabels:
      name: nvidia-peermem-reloader
  template:
    metadata:
      labels:
        name: nvidia-peermem-reloader
    spec:
      containers:
      - name: nvidia-peermem-reloader-ctr
        image: mcr.microsoft.com/mirror/docker/library/ubuntu:24.04
        command: ["/bin/bash", "-xc", "modprobe nvidia-peermem && sleep inf"]
        securityContext:
          privileged: true
""",
}
"""AKS's own driver with the module that it does not load, that holds."""


LIVE = {
    "cluster.yaml": """\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata:
    name: aks-gpu-10001234-vmss000000
    uid: 0d6a1cf2-5a4e-4f1e-9f5e-3a1f3f3d9a10
    labels:
      kubernetes.azure.com/agentpool: gpu
      network.nvidia.com/operator.mofed.wait: "false"
      node.kubernetes.io/instance-type: Standard_ND96isr_H100_v5
      nvidia.com/gpu.present: "true"
      nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
  status:
    allocatable: {cpu: 95500m, memory: 1887436800Ki, nvidia.com/gpu: "8", rdma/ib: "8"}
    capacity: {cpu: "96", memory: 1946157056Ki, nvidia.com/gpu: "8", rdma/ib: "8"}
    conditions:
    - {type: MemoryPressure, status: "False", reason: KubeletHasSufficientMemory}
    - {type: Ready, status: "True", reason: KubeletReady, message: kubelet is posting ready status}
- apiVersion: v1
  kind: Node
  metadata:
    name: aks-system-10001234-vmss000000
    uid: 5d1b7f2e-8a6f-4a45-8b43-6f2f0f3f9c11
    labels: {node.kubernetes.io/instance-type: Standard_D4ds_v5}
  status:
    allocatable: {cpu: 3860m, memory: 12905508Ki}
    conditions:
    - {type: Ready, status: "True", reason: KubeletReady}
- apiVersion: mellanox.com/v1alpha1
  kind: NicClusterPolicy
  metadata: {name: nic-cluster-policy, uid: 7b0e3e0c-6a50-4a2f-9d0e-0b6a8f1d2c12}
  status:
    state: ready
    appliedStates:
    - {name: state-OFED, state: ready}
    - {name: state-SRIOV-device-plugin, state: ready}
    - {name: state-ib-kubernetes, state: ignore}
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: mofed-ubuntu22.04-ds, namespace: network-operator, uid: 3e0c1c55-0f5e-4f6e-8d62-1d4b0b6f2d13}
  status: {desiredNumberScheduled: 16, currentNumberScheduled: 16, numberReady: 16, numberAvailable: 16}
- apiVersion: v1
  kind: Pod
  metadata:
    name: nvidia-device-plugin-daemonset-x7k2p
    namespace: gpu-operator
    uid: 94f5a6f1-3f0a-4c8e-b7f4-7a8b9c0d1e14
    ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: nvidia-device-plugin-daemonset}]
  spec: {nodeName: aks-gpu-10001234-vmss000000}
  status:
    phase: Running
    conditions:
    - {type: PodScheduled, status: "True"}
    - {type: Ready, status: "True"}
    containerStatuses:
    - {name: nvidia-device-plugin, ready: true, restartCount: 0, state: {running: {startedAt: "2026-08-01T10:00:00Z"}}}
"""
}
"""What `kubectl get ... -A -o yaml` gives of an AKS pool: fields of Kubernetes' API reference, labels and states as
the two operators document them, names as AKS makes them."""


@dataclass(frozen=True, kw_only=True)
class Trap:
    """One change that makes a whole fall into a trap."""

    code: str
    source: str
    """Where such a thing stands."""
    file: str
    old: str
    new: str
    at: str
    """What stands in the line that is to be named, or `` for the whole file's first line."""
    base: dict[str, str] = field(default_factory=lambda: WELL)
    also: tuple[str, ...] = ()
    """Other codes that follow from the same words."""

    @property
    def name(self) -> str:
        return f"{self.code.partition('/')[2]}-{abs(hash((self.old, self.new))) % 997}"

    def bad(self) -> dict[str, str]:
        text = self.base[self.file]
        assert self.old in text, self.old
        changed = text.replace(self.old, self.new)
        return {**self.base, self.file: changed} if changed else {k: v for k, v in self.base.items() if k != self.file}

    def line(self) -> int:
        text = self.bad().get(self.file, "")
        return next(i for i, line in enumerate(text.splitlines(), 1) if self.at in line)


_LIMITS = "              limits:\n                nvidia.com/gpu: 8\n                rdma/ib: 8\n"

TRAPS = [
    Trap(
        code="plan/two-rdma-resources",
        source="website/docs/configurations/01-network-operator.md shows both resources, an example apart",
        file="job.yaml",
        old="                rdma/ib: 8\n",
        new="                rdma/ib: 8\n                rdma/shared_ib: 1\n",
        at="resources:",
        also=("plan/no-such-resource",),
    ),
    Trap(
        code="plan/no-such-resource",
        source="Mellanox/network-operator example/rdma-test-pod1.yml asks for rdma/rdma_shared_device_a",
        file="job.yaml",
        old="rdma/ib: 8",
        new="rdma/rdma_shared_device_a: 1",
        at="rdma/rdma_shared_device_a: 1",
    ),
    Trap(
        code="plan/too-many",
        source="8 ports of an ND example on GB300, which has 4 (kubernetes-sigs/dranet examples)",
        file="job.yaml",
        old="                rdma/ib: 8",
        new="                rdma/ib: 16",
        at="rdma/ib: 16",
    ),
    Trap(
        code="plan/slots-as-ports",
        source="the documentation warns: `Claims 1 of 63 pod slots; all NICs accessible`",
        file="job.yaml",
        old="rdma/shared_ib: 1",
        new="rdma/shared_ib: 8",
        at="rdma/shared_ib: 8",
        base=SLOTS,
    ),
    Trap(
        code="plan/no-ipc-lock",
        source="the documentation: without it `ulimit -l` is 64",
        file="job.yaml",
        old="                - IPC_LOCK\n",
        new="                - NET_ADMIN\n",
        at="securityContext",
    ),
    Trap(
        code="plan/shm",
        source="tests/scenarios/k8s/rccl/mpi-job.yaml has no volume there",
        file="job.yaml",
        old="            - name: shm\n              mountPath: /dev/shm\n",
        new="",
        at="volumeMounts",
    ),
    Trap(
        code="plan/shm",
        source="an emptyDir without medium, as in many examples: on the node's disk",
        file="job.yaml",
        old="            emptyDir:\n              medium: Memory\n",
        new="            emptyDir: {}\n",
        at="volumeMounts",
    ),
    Trap(
        code="plan/requests-limits",
        source="Kubernetes documentation, extended resources: requests and limits must be equal",
        file="job.yaml",
        old="              requests:\n                nvidia.com/gpu: 8",
        new="              requests:\n                nvidia.com/gpu: 4",
        at="nvidia.com/gpu: 4",
    ),
    Trap(
        code="plan/no-netdev",
        source="kubernetes-sigs/dranet: GB300's ports are InfiniBand without a network device",
        file="job.yaml",
        old="Standard_ND96isr_H100_v5",
        new="Standard_ND128isr_GB300_v6",
        at="",
        base={"policy.yaml": POLICY, "job.yaml": PLAIN_JOB},
    ),
    Trap(
        code="plan/network-name",
        source="test.sh expects default/aks-infiniband; a renamed IPoIBNetwork leaves the annotation behind",
        file="network.yaml",
        old="  name: aks-infiniband\n",
        new="  name: ipoib-network\n",
        at="",
        base=IPOIB,
    ),
    Trap(
        code="plan/network-name",
        source="networkNamespace of another namespace than the pod's",
        file="network.yaml",
        old='networkNamespace: "default"',
        new='networkNamespace: "training"',
        at="",
        base=IPOIB,
    ),
    Trap(
        code="plan/ipoib-master",
        source="Mellanox/network-operator example/crs/mellanox.com_v1alpha1_ipoibnetwork_cr.yaml: ibs3f1",
        file="network.yaml",
        old='master: "ibP257p0s0"',
        new='master: "ibs3f1"',
        at="master:",
        base=IPOIB,
    ),
    Trap(
        code="plan/ipoib-master",
        source="the CRD: master defaults to the default route's interface",
        file="network.yaml",
        old='  master: "ibP257p0s0"\n',
        new="",
        at="spec:",
        base={**IPOIB, "network.yaml": IPOIB_NETWORK.partition("---\n")[2]},
    ),
    Trap(
        code="plan/address-overlap",
        source="setup-infiniband.md: 172.16.0.0/16 is reserved",
        file="network.yaml",
        old="subnet: 192.168.0.0/24",
        new="subnet: 172.16.8.0/24",
        at="subnet",
        base=IPOIB,
    ),
    Trap(
        code="plan/address-overlap",
        source="AKS's virtual network is 10.224.0.0/12 unless said otherwise",
        file="network.yaml",
        old="subnet: 192.168.0.0/24",
        new="subnet: 10.228.0.0/16",
        at="subnet",
        base=IPOIB,
    ),
    Trap(
        code="plan/no-ipam",
        source="configs/nicclusterpolicy/ipoib/ipoib-network.yaml: whereabouts with images of 25.10",
        file="network.yaml",
        old='      "type": "nv-ipam",\n      "poolName": "ib-pool"\n',
        new='      "type": "whereabouts",\n      "range": "192.168.4.0/24"\n',
        at="ipam: |",
        base=IPOIB,
    ),
    Trap(
        code="plan/nccl-interface",
        source="util.sh sets NCCL_SOCKET_IFNAME=net1 for ipoib alone",
        file="job.yaml",
        old="value: net1",
        new="value: eth0",
        at="value: eth0",
        base=IPOIB,
    ),
    Trap(
        code="plan/nccl-interface",
        source="the same setting left in place without a second network",
        file="env.yaml",
        old="NCCL_SOCKET_IFNAME: eth0",
        new="NCCL_SOCKET_IFNAME: net1",
        at="NCCL_SOCKET_IFNAME",
    ),
    Trap(
        code="plan/nccl-ib-off",
        source="values.yaml forces NCCL_IB_DISABLE to 0, as a 1 left over keeps RDMA idle",
        file="env.yaml",
        old='NCCL_IB_DISABLE: "0"',
        new='NCCL_IB_DISABLE: "1"',
        at="NCCL_IB_DISABLE",
    ),
    Trap(
        code="plan/topology-file",
        source="util.sh stops where a size has no topology file; many manifests have none",
        file="job.yaml",
        old="                -x NCCL_TOPO_FILE=/opt/nvidia-topology/topo.xml \\\n",
        new="",
        at="- image: ghcr.io/azure/aks-rdma-infiniband/nccl-tests",
    ),
    Trap(
        code="plan/topology-file",
        source="the file of ND A100 v4 on ND H100 v5 (azhpc-images topology/)",
        file="topology.yaml",
        old="0008:00:00.0",
        new="0004:00:00.0",
        at="topo.xml:",
    ),
    Trap(
        code="plan/topology-file",
        source="/opt/microsoft is on AzureHPC images, not in containers",
        file="job.yaml",
        old="NCCL_TOPO_FILE=/opt/nvidia-topology/topo.xml",
        new="NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml",
        at="args:",
    ),
    Trap(
        code="plan/two-nfd",
        source="configs/values/gpu-operator/values.yaml: `nfd.enabled: false # Network Operator already deploys NFD`",
        file="gpu-operator/values.yaml",
        old="nfd:\n  enabled: false\n",
        new="",
        at="",
    ),
    Trap(
        code="plan/node-rule",
        source="tests/setup-infra/network-operator-nfd.yaml: device ids without vendor",
        file="rule.yaml",
        old='        vendor: {op: In, value: ["15b3"]}\n        class: {op: In, value: ["0207"]}\n',
        new='        device: {op: In, value: ["101c", "101e"]}\n',
        at='- name: "nfd-network-rule"',
    ),
    Trap(
        code="plan/two-drivers",
        source="website/docs/configurations/02-gpu-drivers.md: mutually exclusive",
        file="setup.sh",
        old=" \\\n    --gpu-driver none",
        new="",
        at="az aks nodepool add",
        also=("plan/no-peermem",),
    ),
    Trap(
        code="plan/two-drivers",
        source="the reverse: a pool without a driver and an operator that installs none",
        file="gpu-operator/values.yaml",
        old="driver:\n  rdma:\n    enabled: true\n",
        new="driver:\n  enabled: false\n",
        at="",
    ),
    Trap(
        code="plan/no-gpudirect",
        source="NVIDIA/gpu-operator values.yaml: driver.rdma.enabled is false by default",
        file="gpu-operator/values.yaml",
        old="driver:\n  rdma:\n    enabled: true\n",
        new="driver:\n  enabled: true\n",
        at="driver:",
    ),
    Trap(
        code="plan/no-peermem",
        source="02-gpu-drivers.md: AKS's driver does not load the module",
        file="peermem.yaml",
        old=MANAGED["peermem.yaml"],
        new="",
        at="",
        base=MANAGED,
    ),
    Trap(
        code="plan/mpi-slots",
        source="tests/scenarios/k8s/templates/mpi-job.yaml: 8 slots on every size",
        file="job.yaml",
        old="slotsPerWorker: 8",
        new="slotsPerWorker: 4",
        at="slotsPerWorker",
    ),
    Trap(
        code="plan/mpi-slots",
        source="-np of one node's GPUs with two workers",
        file="job.yaml",
        old="-np 16",
        new="-np 8",
        at="args:",
    ),
    Trap(
        code="plan/same-node",
        source="no affinity, as in kubeflow/mpi-operator examples/v2beta1/pi/pi.yaml, and half a node",
        file="job.yaml",
        old=MPIJOB[MPIJOB.index("          affinity:") :],
        new="",
        at="spec:",
        base={**WELL, "job.yaml": MPIJOB.replace("gpu: 8", "gpu: 4").replace("rdma/ib: 8", "rdma/ib: 4")
              .replace("slotsPerWorker: 8", "slotsPerWorker: 4").replace("-np 16", "-np 8")},
    ),
    Trap(
        code="plan/version-skew",
        source="configs/nicclusterpolicy with images of 25.10, tests/setup-infra/deploy-aks.sh with chart v26.4.0",
        file="policy.yaml",
        old="version: network-operator-v26.4.0",
        new="version: network-operator-v25.10.0",
        at="network-operator-v25.10.0",
    ),
    Trap(
        code="plan/pod-security",
        source="01-network-operator.md: the label is needed",
        file="setup.sh",
        old="kubectl label --overwrite ns gpu-operator pod-security.kubernetes.io/enforce=privileged\n",
        new="",
        at="",
    ),
    Trap(
        code="plan/infiniband-feature",
        source="02-prerequisites.md: register the feature first",
        file="setup.sh",
        old="az feature register --name AKSInfinibandSupport --namespace Microsoft.ContainerService\n",
        new="",
        at="az aks nodepool add",
    ),
    Trap(
        code="plan/no-toleration",
        source="AKS documentation: GPU pools with --node-taints sku=gpu:NoSchedule",
        file="job.yaml",
        old="key: sku\n            operator: Equal\n            value: gpu\n            effect: NoSchedule\n",
        new="key: nvidia.com/gpu\n            operator: Exists\n            effect: NoSchedule\n",
        at="tolerations:",
    ),
    Trap(
        code="plan/no-rdma-size",
        source="NC A100 v4 has a topology file in tests/scenarios/nvidia-topology and no RDMA",
        file="job.yaml",
        old="node.kubernetes.io/instance-type: Standard_ND96isr_H100_v5",
        new="node.kubernetes.io/instance-type: Standard_NC96ads_A100_v4",
        at="resources:",
        also=("plan/too-many",),
    ),
    Trap(
        code="plan/data-unchecked",
        source="tests/scenarios/k8s/templates/mpi-job.yaml: -c 0",
        file="job.yaml",
        old="-c 1 \\",
        new="-c 0 \\",
        at="args:",
    ),
    Trap(
        code="plan/node-resources",
        source="Kubernetes, device plugins: a device that is not healthy leaves allocatable and stays in capacity",
        file="cluster.yaml",
        old='1887436800Ki, nvidia.com/gpu: "8", rdma/ib: "8"',
        new='1887436800Ki, nvidia.com/gpu: "7", rdma/ib: "8"',
        at="allocatable",
        base=LIVE,
    ),
    Trap(
        code="plan/operator-ready",
        source="Mellanox/network-operator: the label stays true until the driver's pod is ready",
        file="cluster.yaml",
        old='mofed.wait: "false"',
        new='mofed.wait: "true"',
        at="status:",
        base=LIVE,
    ),
]  # fmt: skip
