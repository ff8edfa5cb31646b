"""The servers are real in every test that needs one."""

pytest_plugins = ["moorage_testkit.plugin"]
