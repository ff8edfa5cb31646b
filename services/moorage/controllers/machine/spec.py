from moorage.mesh import controller_spec, subjects

SPEC = controller_spec(
    "machine",
    entry="moorage.controllers.machine.worker:main",
    order=34,
    replicas=2,
    actions=True,
    subscribes=(subjects.LEDGER_COMMIT,),
)
