from moorage.mesh import Subject, WorkerSpec, stores, subjects

SPEC = WorkerSpec(
    name="slots",
    entry="moorage.slots.worker:main",
    order=36,
    replicas=2,
    memory="1Gi",
    serves=(
        Subject(
            subjects.MACHINES_SYNC,
            "MachinesSync",
            "a cluster reports Machines and guests, and gets its slots",
            request=True,
        ),
        Subject(subjects.MACHINES_LIST, "MachinesAsk", "Machines, slots or guests to show", request=True),
    ),
    publishes=(
        Subject(subjects.MACHINES_CHANGED, "-", "a cluster's slots changed: it reports again at once"),
        subjects.LEDGER_COMMIT,
    ),
    subscribes=(subjects.LEDGER_COMMIT,),
    writes=(stores.LEASES,),
    reads=(stores.LEDGER, stores.SNAPSHOTS),
)
