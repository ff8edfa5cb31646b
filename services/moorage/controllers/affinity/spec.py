from moorage.mesh import controller_spec, subjects

SPEC = controller_spec(
    "affinity",
    entry="moorage.controllers.affinity.worker:main",
    order=32,
    replicas=2,
    subscribes=(subjects.LEDGER_COMMIT,),
)
