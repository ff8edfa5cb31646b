"""Tells whether grants let a group use the resource classes that it asks for."""

from __future__ import annotations

from moorage.classes import Grants, asked_classes
from moorage.model.groups import Revision
from moorage.model.names import project_of
from moorage.model.reasons import Reason


def forbidden_class(record: Revision, grants: Grants) -> Reason | None:
    """Returns why a class may not be used, or an algorithm may not be named; None if all may."""
    project = project_of(record.group)
    for app in record.apps:
        for asked in asked_classes(shape.groups for shape in app.shapes):
            if (why := grants.problem(project, asked)) is not None:
                return Reason(code="ClassForbidden", message=why, app=app.name, need=asked.need, by="merger")
    return None
