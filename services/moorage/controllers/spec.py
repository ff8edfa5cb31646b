from moorage.mesh import controller_spec, subjects

#: The user of all controllers that are not built in: `moorage run FILE.py`, or plain NATS clients.
SPEC = controller_spec(
    "controller",
    order=90,
    subscribes=(subjects.INTENT_EVENTS, subjects.FLEET_EVENTS, subjects.DEVICE_EVENTS, subjects.DECISION_EVENTS),
)
