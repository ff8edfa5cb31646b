"""The mesh as data: one `WorkerSpec` per worker, and the subject table, permissions and stores that follow from them.

Nothing here imports a worker, NATS or numpy: commands such as `moorage subjects` stay quick."""

from . import stores, subjects
from .mesh import ADMIN, Mesh, SubjectRow
from .spec import Subject, WorkerSpec, controller_spec
from .stores import Backup, Bucket, ObjectStore, Store, Stream

__all__ = [
    "ADMIN",
    "Backup",
    "Bucket",
    "Mesh",
    "ObjectStore",
    "Store",
    "Stream",
    "Subject",
    "SubjectRow",
    "WorkerSpec",
    "controller_spec",
    "stores",
    "subjects",
]
