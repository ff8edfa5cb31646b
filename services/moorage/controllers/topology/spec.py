from moorage.mesh import controller_spec, subjects

SPEC = controller_spec(
    "topology",
    entry="moorage.controllers.topology.worker:main",
    order=33,
    replicas=2,
    subscribes=(subjects.LEDGER_COMMIT,),
)
