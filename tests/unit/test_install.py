"""Tests that `make install` follows the configuration of pip, and shows its steps."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", Path(__file__).parents[2] / "tools/install.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "setting", ["index-url", "extra-index-url", "no-index", "proxy", "trusted-host", "client-cert"]
)
def test_an_index_of_ones_own_is_left_to_pip(install: ModuleType, setting: str) -> None:
    assert install.uv_environment({"cert": "/ca.pem", setting: "x"}) is None


def test_certificates_and_directories_of_wheels_are_passed_on(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    found = install.uv_environment({"cert": "/ca.pem", "find-links": "/a /b", "timeout": "3"})
    assert (found["SSL_CERT_FILE"], found["UV_FIND_LINKS"]) == ("/ca.pem", "/a,/b")
    monkeypatch.setenv("SSL_CERT_FILE", "/own.pem")
    assert install.uv_environment({"cert": "/ca.pem"})["SSL_CERT_FILE"] == "/own.pem"


def test_settings_come_from_files_and_variables(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://packages.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    found = install.pip_settings()
    assert (found["index-url"], found["find-links"]) == ("https://packages.example/simple", "/wheels")


def test_steps_are_shown_and_a_failure_in_full(install: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    printing = [sys.executable, "-c", "print('Downloading numpy (16 MiB)\\n + numpy==2\\nInstalled 1 package')"]
    assert install.run(printing, os.environ)
    assert capsys.readouterr().out == "  Downloading numpy (16 MiB)\n  Installed 1 package\n"
    assert not install.run([sys.executable, "-c", "print('no such package'); raise SystemExit(2)"], os.environ)
    assert capsys.readouterr().out == "no such package\n"


def test_the_newest_uv_is_not_needed_where_there_is_one(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "uv").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "empty/python"))
    assert install.find_uv() == str(tmp_path / "uv")
