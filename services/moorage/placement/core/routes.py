"""The operations by path and method, with the versions that know them and the rule that allows them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from . import allocations, candidates, explanations, inventories, names, providers, usages
from .call import Answer, Call

MAXIMUM_VERSION = 40
#: An operation that may take long makes its answer in steps.
Operation = Callable[[Call], Answer | Generator[None, None, Answer]]


class Route(NamedTuple):
    """`rule` names the policy; `unknown` is the status for versions that do not know the operation. `alone`: it changes so much
    that it is made in steps, while nothing else is looked at or changed."""

    operation: Operation
    rule: str
    since: int = 0
    until: int = MAXIMUM_VERSION
    unknown: int = 404
    has_body: bool = False
    alone: bool = False
    own: bool = False  # not of the service: in the newest version that is served


def _version(call: Call) -> Answer:
    return Answer(modified=call.now)


_P = "placement:resource_providers"
_I = f"{_P}:inventories"
_A = "placement:allocations"
_C = "placement:resource_classes"
_T = "placement:traits"

ROUTES: dict[str, dict[str, tuple[Route, ...]]] = {
    "/": {"GET": (Route(_version, ""),)},
    "/resource_classes": {
        "GET": (Route(names.list_classes, f"{_C}:list", 2),),
        "POST": (Route(names.create_class, f"{_C}:create", 2, has_body=True),),
    },
    "/resource_classes/{name}": {
        "GET": (Route(names.show_class, f"{_C}:show", 2),),
        "PUT": (
            Route(names.rename_class, f"{_C}:update", 2, 6, has_body=True, alone=True),
            Route(names.ensure_class, f"{_C}:update", 7),
        ),
        "DELETE": (Route(names.delete_class, f"{_C}:delete", 2),),
    },
    "/resource_providers": {
        "GET": (Route(providers.listed, f"{_P}:list"),),
        "POST": (Route(providers.create, f"{_P}:create", has_body=True),),
    },
    "/resource_providers/{uuid}": {
        "GET": (Route(providers.show, f"{_P}:show"),),
        "DELETE": (Route(providers.delete, f"{_P}:delete"),),
        "PUT": (Route(providers.update, f"{_P}:update", has_body=True),),
    },
    "/resource_providers/{uuid}/inventories": {
        "GET": (Route(inventories.listed, f"{_I}:list"),),
        "POST": (Route(inventories.create, f"{_I}:create", has_body=True),),
        "PUT": (Route(inventories.replace, f"{_I}:update", has_body=True),),
        "DELETE": (Route(inventories.delete_all, f"{_I}:delete", 5, unknown=405),),
    },
    "/resource_providers/{uuid}/inventories/{resource_class}": {
        "GET": (Route(inventories.show, f"{_I}:show"),),
        "PUT": (Route(inventories.update, f"{_I}:update", has_body=True),),
        "DELETE": (Route(inventories.delete, f"{_I}:delete"),),
    },
    "/resource_providers/{uuid}/usages": {"GET": (Route(usages.of_provider, f"{_P}:usages"),)},
    "/resource_providers/{uuid}/aggregates": {
        "GET": (Route(names.provider_aggregates, f"{_P}:aggregates:list", 1),),
        "PUT": (Route(names.replace_aggregates, f"{_P}:aggregates:update", 1, has_body=True),),
    },
    "/resource_providers/{uuid}/allocations": {"GET": (Route(allocations.of_provider, f"{_P}:allocations:list"),)},
    "/resource_providers/{uuid}/traits": {
        "GET": (Route(names.provider_traits, f"{_P}:traits:list", 6),),
        "PUT": (Route(names.replace_provider_traits, f"{_P}:traits:update", 6, has_body=True),),
        "DELETE": (Route(names.clear_provider_traits, f"{_P}:traits:delete", 6),),
    },
    "/allocations": {"POST": (Route(allocations.replace_many, f"{_A}:manage", 13, has_body=True),)},
    "/allocations/{consumer_uuid}": {
        "GET": (Route(allocations.of_consumer, f"{_A}:list"),),
        "PUT": (Route(allocations.replace, f"{_A}:update", has_body=True),),
        "DELETE": (Route(allocations.delete, f"{_A}:delete"),),
    },
    "/allocation_candidates": {"GET": (Route(candidates.listed, "placement:allocation_candidates:list", 10),)},
    "/allocation_candidates/explain": {
        "GET": (Route(explanations.explained, "placement:allocation_candidates:list", 40, own=True),)
    },
    "/traits": {"GET": (Route(names.list_traits, f"{_T}:list", 6),)},
    "/traits/{name}": {
        "GET": (Route(names.show_trait, f"{_T}:show", 6),),
        "PUT": (Route(names.ensure_trait, f"{_T}:update", 6),),
        "DELETE": (Route(names.delete_trait, f"{_T}:delete", 6),),
    },
    "/usages": {"GET": (Route(usages.total, "placement:usages", 9),)},
    "/reshaper": {"POST": (Route(allocations.reshape, "placement:reshaper:reshape", 30, has_body=True, alone=True),)},
}
