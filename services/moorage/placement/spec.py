from moorage.mesh import Bucket, Subject, WorkerSpec, stores, subjects

SPEC = WorkerSpec(
    name="placement",
    entry="moorage.placement.worker:main",
    check="moorage.placement.settings:check",
    order=35,
    nice=10,
    replicas=2,
    memory="1Gi",
    publishes=(
        Subject(subjects.PLACEMENT_EVENTS, "Event", "providers and allocations of the Placement interface"),
        subjects.LEDGER_COMMIT,
        subjects.AUDIT_EVENTS,
    ),
    subscribes=(subjects.LEDGER_COMMIT,),
    owns=(Bucket(stores.PROVIDERS),),
    writes=(stores.LEASES,),
    reads=(stores.LEDGER, stores.SNAPSHOTS, stores.TOKENS, stores.EVENTS),
)
