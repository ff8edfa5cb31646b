from moorage.mesh import Backup, Bucket, ObjectStore, Stream, Subject, WorkerSpec, stores, subjects

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
        Subject(subjects.MERGER_REPLAY, "ReplayAsk", "decide again from a record and compare", request=True),
        Subject(subjects.MERGER_WAITING, "Attempt", "a group could not be placed"),
        Subject(subjects.MERGER_REMOVED, "claims, cluster, asOf", "an agent confirmed a removal"),
        Subject(subjects.DEVICES_MOVE, "DevicesMove", "let pods leave devices that failed together", request=True),
        Subject(subjects.MERGER_ENDED, "EndedGroups", "which deleted groups the log still knows", request=True),
    ),
    publishes=(
        Subject(subjects.LEDGER_COMMIT, "Commit", "the decision log (a stream)", streamed=True),
        Subject(subjects.RECORDS, "RecordBatch, History", "what decisions were made from (a stream)", streamed=True),
        Subject(subjects.DECISION_EVENTS, "Event", "results of decisions and deployments"),
        subjects.CLASS_EVENTS,
        subjects.DEVICE_EVENTS,
        subjects.MERGER_WAITING,
        subjects.CANDIDATES,
        subjects.CANDIDATES_BATCH,
    ),
    subscribes=(subjects.LEDGER_COMMIT, subjects.CHANGED),
    owns=(
        # A restored mesh counts anew.
        Bucket(stores.UNUSABLE_NODES, rebuildable=True, backup=Backup.NEVER),
        ObjectStore(stores.SNAPSHOTS, backup=Backup.DECISIONS),
        Stream(stores.LEDGER, subjects.LEDGER_COMMIT, backup=Backup.DECISIONS),
        # Nothing depends on records, and a backup from before has none: they are not copied.
        Stream(
            stores.RECORDS,
            subjects.RECORDS,
            max_bytes=256 << 20,
            max_age_days=7,
            setting="RECORDS",
            backup=Backup.NEVER,
        ),
    ),
    writes=(stores.LEASES,),
    reads=(stores.GROUPS, stores.REVISIONS, stores.CONTROLLERS, stores.CLASSES, stores.EVENTS, stores.STATUS),
)
