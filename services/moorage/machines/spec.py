from moorage.mesh import WorkerSpec, subjects

#: Started per cluster by `moorage machines`, with the user of the cluster.
SPEC = WorkerSpec(
    name="machines",
    per_cluster=True,
    publishes=(subjects.MACHINES_SYNC,),
    subscribes=(subjects.MACHINES_CHANGED,),
)
