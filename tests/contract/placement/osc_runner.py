"""Runs modules of osc-placement's functional tests against a URL, with the interpreter of its own environment, and prints the
results as JSON: the number of tests that passed, and the others by name.

The fixture with which the tests come starts a service in their process; here it names the one at the URL, and empties it.
"""

# mypy: ignore-errors
# What it imports is not in the environment of the checks.

import importlib
import json
import sys
import types
import unittest
from pathlib import Path

import fixtures
from keystoneauth1 import token_endpoint

sys.path.insert(0, str(Path(__file__).parent))
import rest

_FIXTURES = "placement.tests.functional.fixtures"


class _Logging(fixtures.Fixture):
    """Captures log lines, which the client writes by the thousand."""

    def _setUp(self):
        self.useFixture(fixtures.FakeLogger(level=30))


def _fixture(url, token):
    class PlacementFixture(fixtures.Fixture):
        endpoint = url

        def _setUp(self):
            self.token = token
            api = rest.Api(url, token)
            self.addCleanup(api.close)
            rest.purge(api)

    return PlacementFixture


class _Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.passed = 0

    def addSuccess(self, test):
        self.passed += 1


def main(url, token, bearer, *modules):
    made = None
    for end in range(1, _FIXTURES.count(".") + 2):
        name = ".".join(_FIXTURES.split(".")[:end])
        made = sys.modules[name] = types.ModuleType(name)
        made.__path__ = []
    made.capture = types.SimpleNamespace(Logging=_Logging)
    made.placement = types.SimpleNamespace(PlacementFixture=_fixture(url, token))
    if bearer == "bearer":
        token_endpoint.Token.get_headers = lambda self, session, **_: {
            "Authorization": f"Bearer {self.get_token(session)}"
        }
    found = [importlib.import_module(f"osc_placement.tests.functional.{module}") for module in modules]
    result = _Result()
    unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromModule, found)).run(result)
    failed = {test.id(): text for test, text in (*result.failures, *result.errors, *result.skipped)}
    sys.stdout.write(json.dumps({"passed": result.passed, "failed": failed}) + "\n")


main(*sys.argv[1:])
