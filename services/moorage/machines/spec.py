from moorage.mesh import WorkerSpec, subjects

#: Started per cluster by `moorage machines`, with a user of its own.
SPEC = WorkerSpec(
    name="machines",
    per_cluster=True,
    publishes=(subjects.MACHINES_SYNC,),
    subscribes=(subjects.MACHINES_CHANGED,),
)
