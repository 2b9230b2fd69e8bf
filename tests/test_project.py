"""The project's own frame: metadata, layout, scripts and words agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import p2ptrain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OWN_PACKAGES = {path.parent.name for path in (ROOT / "p2ptrain").glob("*/__init__.py")}


def own_files() -> list[Path]:
    """What is in the repository, or would be if it were added now."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=True,
    )
    return [ROOT / name for name in os.fsdecode(listed.stdout).split("\0") if name and (ROOT / name).is_file()]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {requirement.name.lower().replace("_", "-"): str(requirement.specifier) for requirement in requirements}


class TestMetadata:
    def test_version_is_known_to_the_changelog(self) -> None:
        assert f"## {p2ptrain.__version__}" in (ROOT / "CHANGELOG.md").read_text()

    def test_every_dependency_is_pinned_within_its_range(self) -> None:
        project = PROJECT["project"]
        for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
            requirement = Requirement(text)
            version = pinned()[requirement.name.lower().replace("_", "-")]
            assert version.startswith("==")
            assert requirement.specifier.contains(version.removeprefix("==")), (text, version)

    def test_ranges_that_generated_code_and_hivemind_need(self) -> None:
        wanted = {Requirement(text).name: Requirement(text) for text in PROJECT["project"]["dependencies"]}
        assert str(wanted["hivemind"].specifier) == "==1.1.12"
        assert wanted["hivemind"].marker is not None
        assert not wanted["hivemind"].marker.evaluate({"sys_platform": "win32", "platform_machine": "AMD64"})
        assert wanted["hivemind"].marker.evaluate({"sys_platform": "linux", "platform_machine": "x86_64"})
        assert not wanted["hivemind"].marker.evaluate({"sys_platform": "darwin", "platform_machine": "x86_64"})
        assert wanted["protobuf"].specifier.contains("5.29.0")
        assert not wanted["protobuf"].specifier.contains("8.0")

    def test_license(self) -> None:
        text = (ROOT / "LICENSE").read_text()
        assert (
            "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
        )


class TestLayout:
    def test_importing_the_package_is_cheap(self) -> None:
        heavy = "torch grpc hivemind numpy pydantic asyncio".split()  # noqa: SIM905
        code = f"import sys, p2ptrain; print([name for name in {heavy} if name in sys.modules])"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() == "[]"

    def test_every_package_is_under_a_contract(self) -> None:
        contracts = PROJECT["tool"]["importlinter"]["contracts"]
        layers = {name.strip() for layer in contracts[0]["layers"] for name in layer.split("|")}
        sources = {module.removeprefix("p2ptrain.") for c in contracts[1:] for module in c["source_modules"]}
        assert OWN_PACKAGES - layers - sources == set()

    def test_every_folder_with_code_is_a_package(self) -> None:
        folders = {path.parent for path in (ROOT / "p2ptrain").rglob("*.py")}
        assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []

    @pytest.mark.parametrize("script", [".ci/run", "bench/make_others.sh"])
    def test_scripts_are_executable_and_parse(self, script: str) -> None:
        path = ROOT / script
        assert os.access(path, os.X_OK)
        assert "set -euo pipefail" in path.read_text()
        subprocess.run(["bash", "-n", str(path)], timeout=30, check=True)

    @pytest.mark.parametrize("target", ["venv", "demo", "test", "lint", "bench", "soak"])
    def test_make_knows_its_targets(self, target: str) -> None:
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


class TestWords:
    def test_no_network_place_of_packages_is_named(self) -> None:
        """Where packages come from is the installer's business: a host here would break mirrors."""
        hosts = re.compile(
            "|".join(("py" + r"pi\.org", "python" + r"hosted", r"--(extra-)?index" + "-url", "find" + "-links"))
        )
        found = [path for path in own_files() if path.name != "LICENSE" and hosts.search(_text(path))]
        assert found == []

    def test_no_pickle(self) -> None:
        pattern = re.compile(
            r"^\s*(import|from) (pickle|cloudpickle|dill|marshal|shelve)\b|torch\.load\(", re.MULTILINE
        )
        found = [path for path in own_files() if "p2ptrain" in path.parts and pattern.search(_text(path))]
        assert found == []


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")
