"""The API tests that openstack-placement ships (gabbi files, read from its wheel), against this interface: with its operations
in memory, and in the long tests against the durable worker of a mesh."""

from __future__ import annotations

import os
import unittest
import warnings
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from gabbi import handlers, suitemaker, utils

from moorage.placement.core.routes import ROUTES
from moorage_testkit.mesh import Mesh

from .placement import rest_fixtures
from .placement.server import served, settings

FILES = Path(str(distribution("openstack-placement").locate_file("placement/tests/functional/gabbits")))
#: The fixture of a file that needs a service with special settings → the profile with those settings.
PROFILES = {"SecureRBACPolicyFixture": "secure-rbac", "OpenPolicyFixture": "open-policy", "CORSFixture": "cors"}
SUITES: dict[str, dict[str, Any]] = {
    file.stem: utils.load_yaml(yaml_file=str(file)) for file in sorted(FILES.glob("*.yaml"))
}


def profile_of(name: str) -> str:
    return next((PROFILES[f] for f in SUITES[name].get("fixtures") or () if f in PROFILES), "default")


def files(profile: str) -> list[str]:
    return [name for name in SUITES if profile_of(name) == profile]


class _Result(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.passed = 0
        self.unsent: list[str] = []
        self.failed: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.passed += 1

    def addExpectedFailure(self, test: unittest.TestCase, error: Any) -> None:
        self.passed += 1

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        name = getattr(test, "test_data", {}).get("name", str(test))
        if (
            error[0].__name__ == "LocalProtocolError"
        ):  # gabbi's client refuses to send a request that is broken on purpose
            self.unsent.append(name)
        else:
            self.failed[name] = str(error[1])

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        self.addFailure(test, error)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.failed[str(test)] = reason


def run(url: str, name: str) -> _Result:
    """Runs the tests of a file. They name things by variables of the environment, which are as before afterwards."""
    rest_fixtures.APIFixture.url = url
    host, port, prefix, _ = utils.host_info_from_target(url)
    before, result = dict(os.environ), _Result()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite = suitemaker.test_suite_from_dict(
            unittest.TestLoader(),
            name,
            utils.load_yaml(yaml_file=str(FILES / f"{name}.yaml")),
            str(FILES),
            host,
            port,
            rest_fixtures,
            None,
            prefix=prefix,
            handlers=[handler() for handler in handlers.RESPONSE_HANDLERS],
            test_loader_name="gabbits",
        )
        clients = [case.http for case in suite]
        try:
            suite.run(result)
        finally:
            os.environ.clear()
            os.environ.update(before)
            for client in clients:
                client.client.close()
    return result


def check(url: str, name: str, allowed: frozenset[str] = frozenset()) -> None:
    result = run(url, name)
    assert {test: why for test, why in result.failed.items() if test not in allowed} == {}
    assert result.failed.keys() == allowed
    assert result.passed + len(result.unsent) + len(allowed) == len(SUITES[name]["tests"])


def test_these_are_all_tests_of_the_service() -> None:
    counts = {
        profile: sum(len(SUITES[name]["tests"]) for name in files(profile))
        for profile in ("default", *PROFILES.values())
    }
    assert counts == {"default": 1003, "secure-rbac": 268, "open-policy": 41, "cors": 4}


@pytest.fixture(scope="module")
def default() -> Iterator[str]:
    with served(settings()) as url:
        yield url


@pytest.fixture(scope="module")
def secure() -> Iterator[str]:
    with served(settings("secure")) as url:
        yield url


@pytest.mark.parametrize("name", files("default"))
def test_the_interface(default: str, name: str) -> None:
    check(default, name)


@pytest.mark.parametrize("name", files("secure-rbac"))
def test_the_secure_policy(secure: str, name: str) -> None:
    check(secure, name)


@pytest.mark.parametrize("name", files("open-policy"))
def test_a_policy_of_ones_own(tmp_path: Path, name: str) -> None:
    rules = tmp_path / "policy.yaml"
    names = [route.rule for methods in ROUTES.values() for routes in methods.values() for route in routes if route.rule]
    rules.write_text("".join(f'"{rule}": "@"\n' for rule in sorted(set(names))))
    with served(settings(str(rules))) as url:
        check(url, name)


@pytest.mark.parametrize("name", files("cors"))
def test_pages_of_another_origin(name: str) -> None:
    with served(settings(cors="http://valid.example.com")) as url:
        check(url, name)


def test_the_newest_version_as_shipped() -> None:
    with served(settings(maximum=40)) as url:
        check(url, "microversion", frozenset({"latest microversion is 1.39"}))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("maximum", ["1.39", "1.40"])
def test_the_durable_worker(maximum: str) -> None:
    """The mesh makes each change durable before it answers."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MOORAGE_PLACEMENT_AUTH", "noauth2")
        environment.setenv("MOORAGE_PLACEMENT_POLICY", "legacy")
        environment.setenv("MOORAGE_PLACEMENT_MAX", maximum)
        mesh = Mesh()
        try:
            mesh.start()
            for name in files("default"):
                newest = maximum == "1.40" and name == "microversion"
                check(mesh.endpoint["placement"], name, frozenset({"latest microversion is 1.39"} if newest else ()))
        finally:
            mesh.remove()
