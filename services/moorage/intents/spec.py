from moorage.mesh import Backup, Bucket, Subject, WorkerSpec, stores, subjects

SPEC = WorkerSpec(
    name="intents",
    entry="moorage.intents.worker:main",
    order=10,
    takes_mesh=True,
    serves=(
        Subject(subjects.INTENTS_APPLY, "a document", "store a document and act on it", request=True),
        Subject(subjects.INTENTS_CHECK, "a document", "the same, but store nothing", request=True),
        Subject(subjects.INTENTS_DELETE, "kind, project, name", "remove a terminated document", request=True),
        Subject(subjects.INTENTS_ACT, "group, verb", "a step in a group's life cycle", request=True),
        Subject(subjects.INTENTS_RESOURCE, "Change", "make, change or remove a `/v2` resource", request=True),
        Subject(subjects.CONTROLLERS_SET, "Setting", "an operator edits the registry", request=True),
        Subject(subjects.DEVICES_ALGORITHM, "algorithm", "which algorithm chooses devices", request=True),
        Subject(subjects.REGISTER, "Register", "a controller starts", request=True),
        Subject(subjects.LEAVE, "Register", "a controller ends", request=True),
    ),
    publishes=(
        Subject(subjects.INTENT_EVENTS, "Event", "documents and life cycle"),
        Subject(subjects.CLASS_EVENTS, "Event", "resource classes, their status, and what belongs to them"),
        subjects.MACHINES_APPLY,
        subjects.MACHINES_DELETE,
        subjects.GROUPS_DECIDE,
        subjects.GROUPS_STORED,
        subjects.GROUPS_WITHDRAW,
        subjects.MERGER_ENDED,
    ),
    subscribes=(subjects.DECISION_EVENTS,),
    owns=(
        Bucket(stores.GROUPS, backup=Backup.GROUPS),
        Bucket(stores.REVISIONS, purged=True, backup=Backup.GROUPS),
        Bucket(stores.DOCUMENTS),
        Bucket(stores.RESOURCES, atomic=True),
        Bucket(stores.CLASSES),
        Bucket(stores.CONTROLLERS),
    ),
    reads=(stores.STATUS, stores.EVENTS),
)
