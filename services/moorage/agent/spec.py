from moorage.mesh import WorkerSpec, subjects

#: Agents are started per cluster by `moorage agent`, and by `moorage up` for registered clusters.
SPEC = WorkerSpec(
    name="agent",
    per_cluster=True,
    publishes=(subjects.REPORTS, subjects.DESIRED_GET, subjects.DESIRED_CONFIRM),
    subscribes=(subjects.DESIRED_CHANGED,),
)
