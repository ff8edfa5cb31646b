from moorage.mesh import Backup, ObjectStore, Stream, Subject, WorkerSpec, stores, subjects

SPEC = WorkerSpec(
    name="merger",
    entry="moorage.merger.worker:main",
    order=40,
    replicas=2,
    memory="1Gi",
    serves=(
        Subject(subjects.GROUPS_DECIDE, "Decide", "a revision needs a decision"),
        Subject(subjects.GROUPS_STORED, "Stored", "the revision that was announced early is now durable"),
        Subject(subjects.GROUPS_WITHDRAW, "Withdraw", "a revision ends"),
        Subject(subjects.MERGER_SIMULATE, "Decide", "decide without committing", request=True),
        Subject(subjects.MERGER_WAITING, "Attempt", "a group could not be placed"),
        Subject(subjects.MERGER_REMOVED, "claims, cluster, asOf", "an agent confirmed a removal"),
    ),
    publishes=(
        Subject(subjects.LEDGER_COMMIT, "Commit", "the decision log (a stream)", streamed=True),
        Subject(subjects.DECISION_EVENTS, "Event", "results of decisions and deployments"),
        subjects.MERGER_WAITING,
        subjects.CANDIDATES,
        subjects.CANDIDATES_BATCH,
    ),
    subscribes=(subjects.LEDGER_COMMIT, subjects.CHANGED),
    owns=(
        ObjectStore(stores.SNAPSHOTS, backup=Backup.DECISIONS),
        Stream(stores.LEDGER, subjects.LEDGER_COMMIT, backup=Backup.DECISIONS),
    ),
    writes=(stores.LEASES,),
    reads=(stores.GROUPS, stores.CONTROLLERS, stores.EVENTS),
)
