"""Errors of the Placement interface: their status, title, words and codes."""

from __future__ import annotations

import re

UNDEFINED = "placement.undefined_code"
INVENTORY_IN_USE = "placement.inventory.inuse"
CONCURRENT_UPDATE = "placement.concurrent_update"
DUPLICATE_NAME = "placement.duplicate_name"
PROVIDER_IN_USE = "placement.resource_provider.inuse"
CANNOT_DELETE_PARENT = "placement.resource_provider.cannot_delete_parent"
PROVIDER_NOT_FOUND = "placement.resource_provider.not_found"
DUPLICATE_PARAMETER = "placement.query.duplicate_key"
BAD_VALUE = "placement.query.bad_value"
MISSING_VALUE = "placement.query.missing_value"

TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    409: "Conflict",
    413: "Request Entity Too Large",
    415: "Unsupported Media Type",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

#: What the interface says first for each status; clients compare these words.
_EXPLANATIONS = {
    400: "The server could not comply with the request since it is either malformed or otherwise incorrect.",
    401: "This server could not verify that you are authorized to access the document you requested.  Either you supplied "
    "the wrong credentials (e.g., bad password), or your browser does not understand how to supply the credentials required.",
    403: "Access was denied to this resource.",
    404: "The resource could not be found.",
    405: "The method {method} is not allowed for this resource.",
    406: "The resource could not be generated that was acceptable to your browser.",
    409: "There was a conflict when trying to complete your request.",
    413: "The body of your request was too large for this server.",
    415: "The request media type is not supported by this server.",
    500: "The server has either erred or is incapable of performing the requested operation.",
    503: "The server is currently unavailable. Please try again at a later time.",
}
_TAG = re.compile(r"<[^>]*>")


class Refused(Exception):
    """A request that is answered by an error."""

    def __init__(
        self, status: int, detail: str = "", code: str = UNDEFINED, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.headers = headers or {}

    def text(self, method: str) -> str:
        """Returns the words of the error as clients of the interface know them."""
        detail = _TAG.sub("", self.detail.replace("\n", " "))
        return f"{_EXPLANATIONS[self.status].format(method=method)}\n\n {detail}  "


def bad_request(detail: str, code: str = UNDEFINED) -> Refused:
    return Refused(400, detail, code)


def not_found(detail: str) -> Refused:
    return Refused(404, detail)


def conflict(detail: str, code: str = UNDEFINED) -> Refused:
    return Refused(409, detail, code)


class UnknownName(Exception):
    """A trait or resource class that does not exist. Operations tell it in their own words."""


def unknown_class(name: str) -> UnknownName:
    return UnknownName(f"No such resource class {name}.")


def unknown_traits(names: str) -> UnknownName:
    return UnknownName(f"No such trait(s): {names}.")
