from moorage.mesh import controller_spec, subjects

SPEC = controller_spec(
    "resource-class",
    entry="moorage.controllers.resource_class.worker:main",
    order=34,
    replicas=2,
    subscribes=(subjects.LEDGER_COMMIT,),
)
