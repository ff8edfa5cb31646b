from moorage.mesh import Backup, Bucket, Subject, WorkerSpec, stores, subjects

SPEC = WorkerSpec(
    name="patcher",
    entry="moorage.patcher.worker:main",
    order=50,
    nice=15,
    replicas=2,
    serves=(
        Subject(subjects.PATCHER_DIFF, "group", "manifests and applied objects, per cluster", request=True),
        Subject(subjects.DESIRED_GET, "DesiredAsk", "what should run", request=True),
        Subject(subjects.DESIRED_CONFIRM, "Confirm", "result of applying it", request=True),
    ),
    publishes=(
        Subject(subjects.DESIRED_CHANGED, "-", "ask again"),
        subjects.MERGER_REMOVED,
        subjects.ACTIONS,
        subjects.DECISION_EVENTS,
    ),
    subscribes=(subjects.DECISION_EVENTS, subjects.LEDGER_COMMIT),
    owns=(
        Bucket(stores.STATUS, rebuildable=True, backup=Backup.STATUS),
        Bucket(stores.DESIRED, rebuildable=True, backup=Backup.STATUS),
    ),
    writes=(stores.LEASES,),
    reads=(
        stores.GROUPS,
        stores.REVISIONS,
        stores.CONTROLLERS,
        stores.CLUSTERS,
        stores.LEDGER,
        stores.SNAPSHOTS,
        stores.EVENTS,
    ),
)
