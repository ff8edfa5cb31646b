from moorage.mesh import Backup, ObjectStore, Subject, WorkerSpec, stores, subjects

SPEC = WorkerSpec(
    name="sim",
    entry="moorage.sim.worker:main",
    order=60,
    nice=19,
    optional=True,
    replicas=0,
    memory="2Gi",
    serves=(
        Subject(subjects.SIM_APPLY, "Fleet", "make the simulated fleet equal to this", request=True),
        Subject(subjects.SIM_FAULT, "cluster, fault, seconds", "misbehave", request=True),
        Subject(subjects.SIM_LIST, "-", "the simulated clusters", request=True),
    ),
    publishes=(subjects.REPORTS, subjects.DESIRED_GET, subjects.DESIRED_CONFIRM, subjects.MACHINES_SYNC),
    subscribes=(subjects.DESIRED_CHANGED, subjects.MACHINES_CHANGED),
    owns=(ObjectStore(stores.SIMULATED_FLEET, backup=Backup.EVENTS),),
)
