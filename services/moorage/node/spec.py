from moorage.mesh import WorkerSpec, subjects

#: Agents of nodes run on their nodes; each has a user that speaks for its node only.
SPEC = WorkerSpec(name="node", per_node=True, publishes=(subjects.REPORTS,))
