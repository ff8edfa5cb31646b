from moorage.mesh import controller_spec, subjects

SPEC = controller_spec(
    "hpa",
    entry="moorage.controllers.hardware.worker:main",
    order=30,
    actions=True,
    replicas=2,
    subscribes=(subjects.LEDGER_COMMIT,),
)
