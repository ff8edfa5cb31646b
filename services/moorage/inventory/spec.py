from moorage.mesh import Bucket, Subject, WorkerSpec, stores, subjects

SPEC = WorkerSpec(
    name="inventory",
    entry="moorage.inventory.worker:main",
    order=20,
    nice=10,
    replicas=2,
    memory="1Gi",
    writes_redis=True,
    serves=(
        Subject(subjects.REPORTS, "Report", "nodes and pods", request=True),
        Subject(
            subjects.CLUSTERS_SET, "cluster, labels, cordoned, forget", "an operator edits a cluster", request=True
        ),
    ),
    publishes=(
        Subject(subjects.FLEET_EVENTS, "Event", "clusters come, change and go"),
        Subject(subjects.DEVICE_EVENTS, "Event", "devices come, go, fail and recover; too many fail at once"),
    ),
    owns=(Bucket(stores.CLUSTERS),),
    writes=(stores.LEASES,),
    reads=(stores.EVENTS, stores.PROVIDERS, stores.CLASSES),
)
