from moorage.mesh import controller_spec, subjects

SPEC = controller_spec(
    "labels",
    entry="moorage.controllers.cluster_selection.worker:main",
    order=31,
    replicas=2,
    subscribes=(subjects.LEDGER_COMMIT,),
)
