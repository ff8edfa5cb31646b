"""The fixtures that the API tests of openstack-placement name, made over REST. gabbi finds them by the names of the classes.

- A provider's generation grows once for each inventory, once for a write of traits and once for allocations: so inventories
  are added class by class, and aggregates are written at 1.1, which counts nothing.
- `max_unit` is the total where none is given.
- Allocations are written at 1.28, without a consumer type.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from gabbi import fixture

from .rest import Api, purge

#: An inventory: its total, or its fields.
Amount = int | Mapping[str, Any]


def new_uuid() -> str:
    return str(uuid.uuid4())


def export(**pairs: str) -> None:
    os.environ.update(pairs)


class World:
    """Builds provider trees over the interface."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def provider(
        self,
        name: str,
        *,
        uid: str = "",
        parent: str | None = None,
        aggs: Iterable[str] = (),
        traits: Iterable[str] = (),
        inv: Mapping[str, Amount] | None = None,
        env: str = "",
    ) -> str:
        uid = uid or new_uuid()
        body: dict[str, Any] = {"name": name, "uuid": uid}
        if parent:
            body["parent_provider_uuid"] = parent
        self.api.ok("POST", "/resource_providers", body, mv="1.20")
        if env:
            os.environ[env] = uid
        if aggs:
            self.aggregates(uid, aggs)
        for rc, spec in (inv or {}).items():
            self.inventory(uid, rc, spec)
        if traits:
            self.traits(uid, traits)
        return uid

    def aggregates(self, uid: str, aggs: Iterable[str]) -> None:
        self.api.ok("PUT", f"/resource_providers/{uid}/aggregates", list(aggs), mv="1.1")

    def generation(self, uid: str) -> int:
        found: int = self.api.ok("GET", f"/resource_providers/{uid}", mv="1.14")["generation"]
        return found

    def resource_class(self, rc: str) -> None:
        if rc.startswith("CUSTOM_"):
            self.api.ok("PUT", f"/resource_classes/{rc}", mv="1.7")

    def inventory(self, uid: str, rc: str, amount: Amount) -> None:
        spec: dict[str, Any] = {"total": amount} if isinstance(amount, int) else dict(amount)
        spec.setdefault("max_unit", spec["total"])
        self.resource_class(rc)
        body = dict(spec, resource_class=rc, resource_provider_generation=self.generation(uid))
        self.api.ok("POST", f"/resource_providers/{uid}/inventories", body, mv="1.26")

    def traits(self, uid: str, traits: Iterable[str]) -> None:
        for trait in traits:
            if trait.startswith("CUSTOM_"):
                self.api.ok("PUT", f"/traits/{trait}", mv="1.6")
        self.api.ok(
            "PUT",
            f"/resource_providers/{uid}/traits",
            {"traits": list(traits), "resource_provider_generation": self.generation(uid)},
            mv="1.6",
        )

    def allocate(self, consumer: str, provider: str, resources: dict[str, int], project: str, user: str) -> None:
        self.api.ok(
            "PUT",
            f"/allocations/{consumer}",
            {
                "allocations": {provider: {"resources": resources}},
                "project_id": project,
                "user_id": user,
                "consumer_generation": None,
            },
            mv="1.28",
        )


class APIFixture(fixture.GabbiFixture):  # type: ignore[misc]
    """An empty service, and the variables that the files name."""

    #: The service under test; set before a suite runs.
    url: ClassVar[str] = ""
    token: ClassVar[str] = "admin"

    def start_fixture(self) -> None:
        self._api = api = Api(self.url, self.token)
        purge(api)
        for name in [
            "RP_UUID",
            "RP_NAME",
            "RP_UUID1",
            "RP_NAME1",
            "RP_UUID2",
            "RP_NAME2",
            "PROJECT_ID",
            "ADMIN_PROJECT_ID",
            "SERVICE_PROJECT_ID",
            "USER_ID",
            "PROJECT_ID_ALT",
            "USER_ID_ALT",
            "INSTANCE_UUID",
            "MIGRATION_UUID",
            "CONSUMER_UUID",
            "PARENT_PROVIDER_UUID",
            "ALT_PARENT_PROVIDER_UUID",
        ]:
            os.environ[name] = new_uuid()
        export(
            CUSTOM_RES_CLASS="CUSTOM_IRON_NFV",
            CUSTOM_RES_CLASS1="CUSTOM_IRON_NFV1",
            CUSTOM_RES_CLASS2="CUSTOM_IRON_NFV2",
        )
        self.build(World(api))

    def build(self, w: World) -> None:
        pass

    def stop_fixture(self) -> None:
        self._api.close()


class LegacyRBACPolicyFixture(APIFixture):
    """Server profile 'default' (enforce_new_defaults = False)."""


class SecureRBACPolicyFixture(APIFixture):
    """Server profile 'secure-rbac' (enforce_new_defaults = True)."""


class OpenPolicyFixture(APIFixture):
    """Server profile 'open-policy' (every rule but admin_api is '@')."""


class CORSFixture(APIFixture):
    """Server profile 'cors' (allowed_origin http://valid.example.com)."""


class AllocationFixture(APIFixture):
    """One provider; three consumers of two users in one project."""

    def build(self, w: World) -> None:
        env = os.environ
        export(ALT_USER_ID=new_uuid())
        rp = w.provider(
            env["RP_NAME"],
            uid=env["RP_UUID"],
            inv={
                "DISK_GB": {"total": 2048, "step_size": 10, "min_unit": 10, "max_unit": 1000},
                "VCPU": {"total": 10, "max_unit": 10},
            },
        )
        for name, user, what in (
            ("CONSUMER_0", "USER_ID", {"DISK_GB": 1000}),
            ("CONSUMER_ID", "USER_ID", {"VCPU": 6}),
            ("ALT_CONSUMER_ID", "ALT_USER_ID", {"DISK_GB": 20, "VCPU": 1}),
        ):
            env[name] = new_uuid()
            w.allocate(env[name], rp, what, env["PROJECT_ID"], env[user])
        export(ALT_RP_UUID=new_uuid(), ALT_RP_NAME=new_uuid())


class SharedStorageFixture(APIFixture):
    """Two computes and two sharing disks in one aggregate; NUMA and PF below
    each compute."""

    def build(self, w: World) -> None:
        agg = new_uuid()
        export(AGG_UUID=agg)
        disk = {"total": 2000, "reserved": 100, "allocation_ratio": 1.0}
        cpu_ram = {
            "VCPU": {"total": 24, "allocation_ratio": 16.0},
            "MEMORY_MB": {"total": 131072, "allocation_ratio": 1.5},
        }
        cn = {
            1: w.provider("cn1", aggs=[agg], env="CN1_UUID", inv=cpu_ram, traits=["HW_CPU_X86_SSE", "HW_CPU_X86_SSE2"]),
            2: w.provider("cn2", aggs=[agg], env="CN2_UUID", inv=dict(cpu_ram, DISK_GB=disk)),
        }
        for name in ("ss", "ss2"):
            w.provider(
                name,
                aggs=[agg],
                env=f"{name.upper()}_UUID",
                inv={"DISK_GB": disk},
                traits=["MISC_SHARES_VIA_AGGREGATE"],
            )
        for i in (1, 2):
            for j in (1, 2):
                numa = w.provider(f"numa{i}_{j}", parent=cn[i], env=f"NUMA{i}_{j}_UUID")
                w.provider(f"pf{i}_{j}", parent=numa, env=f"PF{i}_{j}_UUID", inv={"SRIOV_NET_VF": 8})


class NUMAAggregateFixture(APIFixture):
    """Resourceless computes with NUMA children; one sharing disk reached from
    both computes, a second only from one NUMA node."""

    def build(self, w: World) -> None:
        a, b, c = new_uuid(), new_uuid(), new_uuid()
        export(AGGA_UUID=a, AGGB_UUID=b, AGGC_UUID=c)
        cn1 = w.provider("cn1", aggs=[a], env="CN1_UUID")
        cn2 = w.provider("cn2", aggs=[a, b], env="CN2_UUID")
        for name, agg in (("ss1", a), ("ss2", c)):
            w.provider(
                name,
                aggs=[agg],
                env=f"{name.upper()}_UUID",
                inv={"DISK_GB": {"total": 2000, "reserved": 100}},
                traits=["MISC_SHARES_VIA_AGGREGATE"],
            )
        vcpu = {"VCPU": {"total": 24, "allocation_ratio": 16.0}}
        for name, parent, aggs in (
            ("numa1_1", cn1, [c]),
            ("numa1_2", cn1, []),
            ("numa2_1", cn2, []),
            ("numa2_2", cn2, []),
        ):
            w.provider(name, parent=parent, aggs=aggs, inv=vcpu, env=f"{name.upper()}_UUID")


class NUMANetworkFixture(APIFixture):
    """cn1: NUMA nodes with FPGAs and a GPU, and two network agents; cn2: flat
    compute with three NICs of PFs; one sharing disk for both."""

    def build(self, w: World) -> None:
        agg = new_uuid()
        export(AGGA_UUID=agg)
        parents = self.grandparents(w)
        w.provider("ss1", aggs=[agg], env="SS1_UUID", inv={"DISK_GB": 2000}, traits=["MISC_SHARES_VIA_AGGREGATE"])
        cn1 = w.provider("cn1", parent=parents[0], aggs=[agg], env="CN1_UUID", traits=["COMPUTE_VOLUME_MULTI_ATTACH"])
        numa = []
        for i, mem, more in (
            (0, {"total": 2048, "min_unit": 512, "step_size": 256}, []),
            (1, {"total": 2048, "min_unit": 256, "max_unit": 1024}, ["CUSTOM_FOO"]),
        ):
            numa.append(
                w.provider(
                    f"numa{i}",
                    parent=cn1,
                    env=f"NUMA{i}_UUID",
                    inv={"VCPU": 4, "MEMORY_MB": mem},
                    traits=["HW_NUMA_ROOT", *more],
                )
            )
        who = {"project": "numafx-project", "user": "numafx-user"}
        w.allocate(new_uuid(), numa[0], {"VCPU": 2}, **who)
        w.provider("fpga0", parent=numa[0], env="FPGA0_UUID", inv={"FPGA": 1})
        w.provider("pgpu0", parent=numa[0], env="PGPU0_UUID", inv={"VGPU": 8})
        for i in (0, 1):
            w.provider(f"fpga1_{i}", parent=numa[1], env=f"FPGA1_{i}_UUID", inv={"FPGA": 1})
        bw = "NET_BW_EGR_KILOBIT_PER_SEC"
        sriov = w.provider("sriov_agent", parent=cn1, env="SRIOV_AGENT_UUID", traits=["CUSTOM_VNIC_TYPE_DIRECT"])
        for i in (1, 2):
            w.provider(f"esn{i}", parent=sriov, env=f"ESN{i}_UUID", inv={bw: 10000 * i}, traits=[f"CUSTOM_PHYSNET{i}"])
        ovs = w.provider("ovs_agent", parent=cn1, env="OVS_AGENT_UUID", traits=["CUSTOM_VNIC_TYPE_NORMAL"])
        w.provider("br_int", parent=ovs, env="BR_INT_UUID", inv={bw: 1000}, traits=["CUSTOM_PHYSNET0"])

        cn2 = w.provider("cn2", parent=parents[1], aggs=[agg], env="CN2_UUID", inv={"VCPU": 8})
        w.allocate(new_uuid(), cn2, {"VCPU": 3}, **who)
        w.inventory(cn2, "MEMORY_MB", {"total": 2048, "min_unit": 1024, "step_size": 128})
        w.inventory(cn2, "DISK_GB", 1000)
        w.traits(cn2, ["CUSTOM_FOO"])
        # nic -> [(pf suffix, physnet, VFs)]
        layout = {
            1: [("1_1", 1, 4), ("1_2", 2, 4)],
            2: [("2_1", 1, 2), ("2_2", 2, 2), ("2_3", 1, 2), ("2_4", 2, 2)],
            3: [("3_1", 1, 8)],
        }
        nics = {i: w.provider(f"nic{i}", parent=cn2, env=f"NIC{i}_UUID", traits=["CUSTOM_HW_NIC_ROOT"]) for i in layout}
        for i, pfs in layout.items():
            for suffix, net, vfs in pfs:
                w.provider(
                    f"pf{suffix}",
                    parent=nics[i],
                    env=f"PF{suffix}_UUID",
                    inv={"CUSTOM_VF": vfs},
                    traits=[f"CUSTOM_PHYSNET{net}"],
                )

    def grandparents(self, w: World) -> tuple[str | None, str | None]:
        return None, None


class DeepNUMANetworkFixture(NUMANetworkFixture):
    """The same, two empty levels further down (gp1 -> p1, p2 -> cn1, cn2)."""

    def grandparents(self, w: World) -> tuple[str | None, str | None]:
        gp = w.provider("gp1")
        return w.provider("p1", parent=gp), w.provider("p2", parent=gp)


class NonSharedStorageFixture(APIFixture):
    """Three equal flat computes, no aggregates yet."""

    def build(self, w: World) -> None:
        export(AGGA_UUID=new_uuid(), AGGB_UUID=new_uuid(), AGGC_UUID=new_uuid())
        for i in (1, 2, 3):
            w.provider(f"cn{i}", env=f"CN{i}_UUID", inv={"VCPU": 24, "MEMORY_MB": 131072, "DISK_GB": 2000})


class GranularFixture(APIFixture):
    """Three computes with differing inventory and traits, two sharing disks
    and a sharing network in three aggregates."""

    def build(self, w: World) -> None:
        a, b, c = new_uuid(), new_uuid(), new_uuid()
        export(AGGA=a, AGGB=b, AGGC=c)
        w.resource_class("CUSTOM_NET_MBPS")
        base = {"VCPU": 8, "MEMORY_MB": 4096}
        net = {"SRIOV_NET_VF": 8, "CUSTOM_NET_MBPS": 4000}
        share = "MISC_SHARES_VIA_AGGREGATE"
        w.provider(
            "cn_left",
            aggs=[a],
            env="CN_LEFT",
            inv={**base, "DISK_GB": 500, "VGPU": 8, **net},
            traits=["HW_CPU_X86_AVX", "HW_CPU_X86_AVX2", "HW_GPU_API_DXVA", "HW_NIC_DCB_PFC", "CUSTOM_FOO"],
        )
        w.provider(
            "cn_middle",
            aggs=[a, b],
            env="CN_MIDDLE",
            inv={**base, **net},
            traits=["HW_CPU_X86_AVX", "HW_CPU_X86_AVX2", "HW_CPU_X86_SSE", "HW_NIC_ACCEL_TLS"],
        )
        w.provider(
            "cn_right",
            aggs=[b, c],
            env="CN_RIGHT",
            inv={**base, "DISK_GB": 500, "VGPU": {"total": 8, "max_unit": 2}},
            traits=["HW_CPU_X86_MMX", "HW_GPU_API_DXVA", "CUSTOM_DISK_SSD"],
        )
        w.provider("shr_disk_1", aggs=[a], env="SHR_DISK_1", inv={"DISK_GB": 1000}, traits=[share, "CUSTOM_DISK_SSD"])
        w.provider("shr_disk_2", aggs=[a, b], env="SHR_DISK_2", inv={"DISK_GB": 1000}, traits=[share])
        w.provider(
            "shr_net", aggs=[c], env="SHR_NET", inv={"SRIOV_NET_VF": 16, "CUSTOM_NET_MBPS": 40000}, traits=[share]
        )


class NeutronQoSMultiSegmentFixture(APIFixture):
    """Four computes, each with an OVS agent and an SR-IOV agent subtree; the
    physical networks differ, and the last compute has both, with less
    bandwidth."""

    DIRECT = ["CUSTOM_VNIC_TYPE_DIRECT", "CUSTOM_VNIC_TYPE_DIRECT_PHYSICAL", "CUSTOM_VNIC_TYPE_MACVTAP"]
    NORMAL = ["CUSTOM_VNIC_TYPE_NORMAL"]

    def build(self, w: World) -> None:
        nets = {0: ["OTHER"], 1: ["MSN_S1"], 2: ["MSN_S2"], 3: ["MSN_S1", "MSN_S2"]}
        for i, segments in nets.items():
            host = f"compute{i}"
            slow = len(segments) > 1
            root = w.provider(host, env=host, inv={"VCPU": 8, "MEMORY_MB": 4096, "DISK_GB": 500})
            ovs = w.provider(
                f"{host}:Open vSwitch agent",
                parent=root,
                env=f"{host}:ovs_agent",
                traits=self.NORMAL,
                inv={"NET_PACKET_RATE_KILOPACKET_PER_SEC": 1000},
            )
            sriov = w.provider(f"{host}:NIC Switch agent", parent=root, env=f"{host}:sriov_agent", traits=self.DIRECT)
            for n, segment in enumerate(segments):
                physnet = [f"CUSTOM_PHYSNET_{segment}"]
                more = str(n + 1) if n else ""
                w.provider(
                    f"{host}:Open vSwitch agent:br-ex{more}",
                    parent=ovs,
                    env=f"{host}:br_ex{more}",
                    inv=self.bandwidth(1000 if slow else 5000),
                    traits=self.NORMAL + physnet,
                )
                w.provider(
                    f"{host}:NIC Switch agent:enp129s0f{n}",
                    parent=sriov,
                    env=f"{host}:pf{n}",
                    inv=self.bandwidth(1000 if slow else 10000),
                    traits=self.DIRECT + physnet,
                )

    @staticmethod
    def bandwidth(kbps: int) -> dict[str, Amount]:
        return {"NET_BW_EGR_KILOBIT_PER_SEC": kbps, "NET_BW_IGR_KILOBIT_PER_SEC": kbps}
