"""Configures all tests: the testkit's fixtures with real servers, and which files run in one process when tests run in
parallel (`make test` does)."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers

from moorage_testkit import seeds

pytest_plugins = ["moorage_testkit.plugin"]

# How long an example takes says nothing on a busy machine; the same code is tested with the same examples.
settings.register_profile("moorage", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("moorage")
# Hypothesis would parse all modules that are loaded for constants to try: seconds in each process, and other examples with each module
# that another test of the process has loaded.
providers._get_local_constants = lambda: providers._local_constants

# The default prints all local variables of a failure in a frame: on a slow machine the event loop stood still for half a minute.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

#: How many times more examples property tests try; `make test-long` sets it. Without it they try a sample, at most so many.
MORE_EXAMPLES = int(os.environ.get("MOORAGE_TEST_EXAMPLES", "1"))
SAMPLE = 40

#: Files that share three control planes; started once, they serve all of these.
FLEET_OF_CLUSTERS = tuple(f"tests/kube/test_{name}.py" for name in ("fleet", "moves", "registered"))


#: What only computes, and what starts servers that serve many files.
COMPUTING, COSTLY = "tests/unit/", "tests/kube/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each process whole files, in the order of `testpaths`: the slowest first, so that none is left for the end."""
    from moorage_testkit.scheduler import FileScheduler

    config.option.loadscopereorder = False
    return FileScheduler(config, log, scope=_scope, costly=COSTLY, computing=COMPUTING)


def _scope(file: str) -> str:
    return f"{COSTLY}fleet" if file in FLEET_OF_CLUSTERS else file


def pytest_configure(config: pytest.Config) -> None:
    seeds.with_long = config.option.markexpr != "not long"


def pytest_collection_finish() -> None:
    # What was collected stays until the end: no garbage collection has to look at it again.
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for test in {item.obj for item in items if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)}:
        given = test._hypothesis_internal_use_settings
        if MORE_EXAMPLES > 1:
            wanted = settings(
                given, max_examples=given.max_examples * MORE_EXAMPLES, derandomize=False, print_blob=True
            )
        else:
            wanted = settings(given, max_examples=min(given.max_examples, SAMPLE))
        test._hypothesis_internal_use_settings = wanted
