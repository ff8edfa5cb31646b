from moorage.mesh import Bucket, Subject, WorkerSpec, stores, subjects

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
        Subject(subjects.MACHINES_APPLY, "a document", "check and store a Machine", request=True),
        Subject(subjects.MACHINES_DELETE, "name", "delete a Machine", request=True),
        Subject(subjects.MACHINES_LIST, "MachinesAsk", "Machines, slots or guests to show", request=True),
    ),
    publishes=(
        Subject(subjects.MACHINES_CHANGED, "-", "a cluster's slots changed: it reports again at once"),
        Subject(subjects.MACHINE_EVENTS, "Event", "Machines of the mesh, and their guests"),
        subjects.LEDGER_COMMIT,
    ),
    subscribes=(subjects.LEDGER_COMMIT,),
    owns=(Bucket(stores.MACHINES),),
    writes=(stores.LEASES,),
    reads=(stores.LEDGER, stores.SNAPSHOTS, stores.EVENTS),
)
