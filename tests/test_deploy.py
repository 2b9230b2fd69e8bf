"""The files in deploy/ and examples/: each parses, and every command, flag, port and path in it exists.

The command line is the real one (``p2ptrain.cli.main:app``); nothing is started, no container and no cluster.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import pytest
import typer
import yaml

from p2ptrain.config import load_manifest
from p2ptrain.config_peer import DEFAULT_DHT_PORT, DEFAULT_PORT
from tests.command_lines import commands_in, problems_of

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
EXAMPLES = ROOT / "examples"
PORTS = {DEFAULT_PORT, DEFAULT_DHT_PORT}
VARIABLES = set(re.findall(r"P2PTRAIN_[A-Z_]+", (ROOT / "p2ptrain" / "config_peer.py").read_text()))


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    try:
        from p2ptrain.cli.main import app
    except ModuleNotFoundError as error:
        if error.name != "p2ptrain.cli.main":
            raise
        pytest.skip("there is no command line yet (p2ptrain/cli/main.py)")
    assert isinstance(app, typer.Typer)
    return app


def read(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def ports_of(arguments: list[str]) -> dict[str, int]:
    found = {}
    for flag, value in re.findall(r"(--[a-z-]+)[= ](\S+:\d+)", " ".join(arguments)):
        found[flag] = int(value.rpartition(":")[2])
    return found


def check_arguments(app: typer.Typer, arguments: list[str], replaced: dict[str, str] | None = None) -> None:
    filled = [word for word in arguments]
    for old, new in (replaced or {}).items():
        filled = [word.replace(old, new) for word in filled]
    assert problems_of(app, filled) == []


def is_below(path: str, folders: set[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yml", "p2ptrain.service", "kubernetes.yaml"])
class TestEveryFile:
    def test_its_head_says_what_was_not_run(self, name: str) -> None:
        head = read(name).split("\n\n")[0]
        assert "Not run by us" in head
        assert all(line.startswith("#") for line in head.splitlines())

    def test_commands_in_its_comments_exist(self, name: str, app: typer.Typer) -> None:
        for arguments in commands_in(read(name)):
            check_arguments(app, arguments)


class TestDockerfile:
    def instructions(self) -> list[tuple[str, str]]:
        joined = re.sub(r"\\\n", " ", read("Dockerfile"))
        lines = [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]
        return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]

    def test_instructions_are_known_and_in_order(self) -> None:
        words = [word for word, _ in self.instructions()]
        known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
        assert set(words) <= known
        assert words[0] == "FROM"
        assert words.index("USER") < words.index("ENTRYPOINT")

    def test_what_it_copies_exists_and_is_not_ignored(self) -> None:
        allowed = (ROOT / ".dockerignore").read_text().splitlines()
        for word, rest in self.instructions():
            if word == "COPY":
                for source in rest.split()[:-1]:
                    assert (ROOT / source).exists(), source
                    assert f"!{source.removeprefix('./')}" in allowed

    def test_it_runs_as_a_user_without_rights(self) -> None:
        user = next(rest for word, rest in self.instructions() if word == "USER")
        assert user.split(":")[0].isdigit()
        assert int(user.split(":")[0]) > 0

    def test_ports_state_and_variables(self) -> None:
        values = dict(self.instructions())
        assert {int(port) for port in values["EXPOSE"].split()} == PORTS
        environment = dict(pair.split("=", 1) for pair in shlex.split(values["ENV"]))
        assert {name for name in environment if name.startswith("P2PTRAIN_")} <= VARIABLES
        assert environment["P2PTRAIN_HOME"] in json.loads(values["VOLUME"])

    def test_the_entry_point_is_our_program(self, app: typer.Typer) -> None:
        values = dict(self.instructions())
        assert json.loads(values["ENTRYPOINT"]) == ["p2ptrain"]
        check_arguments(app, json.loads(values["CMD"]))


class TestCompose:
    @property
    def file(self) -> dict[str, Any]:
        loaded = yaml.safe_load(read("compose.yml"))
        assert isinstance(loaded, dict)
        return loaded

    def test_one_starts_and_two_join(self) -> None:
        commands = {name: service["command"][0] for name, service in self.file["services"].items()}
        assert commands == {"first": "start", "joiner-1": "join", "joiner-2": "join"}

    def test_commands_and_flags_exist(self, app: typer.Typer) -> None:
        for service in self.file["services"].values():
            check_arguments(app, service["command"])

    def test_addresses_are_the_services_and_ports_are_opened(self) -> None:
        for name, service in self.file["services"].items():
            ports = ports_of(service["command"])
            assert ports == {"--listen": 7700, "--announce": 7700, "--dht-listen": 7701}
            assert f"--announce={name}:7700" in service["command"]
        opened = {int(pair.split(":")[1]) for pair in self.file["services"]["first"]["ports"]}
        assert opened == PORTS

    def test_paths_are_mounted_and_their_sources_exist(self) -> None:
        for name, service in self.file["services"].items():
            mounts = [volume.split(":") for volume in service["volumes"]]
            targets = {mount[1] for mount in mounts}
            for source, *_ in mounts:
                assert source in self.file["volumes"] or (DEPLOY / source).is_file(), (name, source)
            used = re.findall(r"(?:^|[=@])(/[^\s]+)", "\n".join(service["command"]), re.MULTILINE)
            assert used and all(is_below(path, targets) for path in used), (name, used)
            assert "/var/lib/p2ptrain" in targets  # P2PTRAIN_HOME of the image; the rest is read-only
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()

    def test_joiners_wait_for_the_invite_that_the_first_writes(self) -> None:
        services = self.file["services"]
        first = services["first"]
        invite = next(word.split("=")[1] for word in first["command"] if word.startswith("--invite-file="))
        assert first["healthcheck"]["test"][-1] == invite
        for name in ("joiner-1", "joiner-2"):
            assert services[name]["command"][1] == f"@{invite}"
            assert services[name]["depends_on"] == {"first": {"condition": "service_healthy"}}


class TestUnit:
    def values(self) -> dict[str, str]:
        lines = [line for line in read("p2ptrain.service").splitlines() if "=" in line and not line.startswith("#")]
        return dict(line.split("=", 1) for line in lines)

    def test_the_command_exists(self, app: typer.Typer) -> None:
        program, *arguments = shlex.split(self.values()["ExecStart"])
        assert PurePosixPath(program).name == "p2ptrain"
        assert PurePosixPath(program).parent.as_posix() + "/pip install p2ptrain" in read("p2ptrain.service")
        check_arguments(app, arguments, {"%d": "/run/credentials"})

    def test_ports_credential_and_state(self) -> None:
        values = self.values()
        assert set(ports_of(shlex.split(values["ExecStart"])).values()) == PORTS
        credential, path = values["LoadCredential"].split(":")
        assert f"@%d/{credential}" in values["ExecStart"]
        assert f"invite {path}\n" in read("p2ptrain.service")  # the head says how it gets there
        assert values["Environment"] == f"P2PTRAIN_HOME=/var/lib/{values['StateDirectory']}"
        assert "P2PTRAIN_HOME" in VARIABLES

    def test_exit_codes_that_need_a_person_do_not_restart(self) -> None:
        from p2ptrain.errors import AdmissionError, ConfigError

        codes = {int(code) for code in self.values()["RestartPreventExitStatus"].split()}
        assert codes == {ConfigError.exit_code, AdmissionError.exit_code}

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
    def test_systemd_analyze_verify(self, tmp_path: Path) -> None:
        program = shlex.split(self.values()["ExecStart"])[0]
        unit = tmp_path / "p2ptrain.service"
        unit.write_text(read("p2ptrain.service").replace(program, "/bin/true"))
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
        about_ours = [line for line in (done.stdout + done.stderr).splitlines() if "p2ptrain" in line]
        assert (done.returncode, about_ours) == (0, [])


class TestKubernetes:
    def documents(self) -> dict[str, dict[str, Any]]:
        return {document["kind"]: document for document in yaml.safe_load_all(read("kubernetes.yaml"))}

    def container(self) -> dict[str, Any]:
        (container,) = self.documents()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
        assert isinstance(container, dict)
        return container

    def test_selectors_and_names_agree(self) -> None:
        service, members = self.documents()["Service"], self.documents()["StatefulSet"]
        labels = members["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"] == members["spec"]["selector"]["matchLabels"] == labels
        assert members["spec"]["serviceName"] == service["metadata"]["name"]

    def test_command_flags_and_probe_exist(self, app: typer.Typer) -> None:
        container = self.container()
        check_arguments(app, container["args"], {"$(POD_IP)": "10.0.0.1"})
        program, *arguments = container["livenessProbe"]["exec"]["command"]
        assert program == "p2ptrain"
        check_arguments(app, arguments)

    def test_ports(self) -> None:
        container = self.container()
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert named == {"grpc": DEFAULT_PORT, "dht": DEFAULT_DHT_PORT}
        assert ports_of(container["args"]) == {"--listen": 7700, "--announce": 7700, "--dht-listen": 7701}
        served = {port["targetPort"]: port["port"] for port in self.documents()["Service"]["spec"]["ports"]}
        assert served == named
        for probe in ("startupProbe", "readinessProbe"):
            assert container[probe]["tcpSocket"]["port"] in named

    def test_paths_are_mounted(self) -> None:
        pod = self.documents()["StatefulSet"]["spec"]
        container = self.container()
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"] for volume in pod["template"]["spec"]["volumes"]}
        claims = {claim["metadata"]["name"] for claim in pod["volumeClaimTemplates"]}
        assert set(mounts.values()) == volumes | claims
        invite = next(word for word in container["args"] if word.startswith("@"))[1:]
        assert is_below(invite, {path for path, name in mounts.items() if name == "invite"})
        environment = {entry["name"]: entry.get("value", "") for entry in container["env"]}
        assert mounts[environment["P2PTRAIN_HOME"]] in claims
        assert {name for name in environment if name.startswith("P2PTRAIN_")} <= VARIABLES
        assert {name for word in container["args"] for name in re.findall(r"\$\((\w+)\)", word)} <= set(environment)

    def test_the_secret_is_the_one_that_the_head_makes(self) -> None:
        volumes = self.documents()["StatefulSet"]["spec"]["template"]["spec"]["volumes"]
        secret = next(volume["secret"]["secretName"] for volume in volumes if "secret" in volume)
        assert f"create secret generic {secret} --from-file=invite=" in read("kubernetes.yaml")

    def test_no_rights(self) -> None:
        pod = self.documents()["StatefulSet"]["spec"]["template"]["spec"]
        own = self.container()["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}


class TestExamples:
    @pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/run.toml")), ids=lambda path: path.parent.name)
    def test_each_manifest_is_valid_and_names_a_model_that_exists(self, path: Path) -> None:
        from p2ptrain.data.registry import dataset_names
        from p2ptrain.models.registry import model_shape

        manifest = load_manifest(path)
        assert manifest.name == path.parent.name
        assert manifest.untrusted_names() == ()
        assert manifest.data.name in dataset_names()
        shape = model_shape(manifest.model.name, manifest.model.options)
        assert shape is not None
        assert shape.context == manifest.batch.sequence_length
        assert shape.parameters() <= manifest.limits.max_parameters

    def test_there_are_two(self) -> None:
        assert sorted(path.parent.name for path in EXAMPLES.glob("*/run.toml")) == ["consortium", "quickstart"]

    @pytest.mark.parametrize(
        "path",
        [*sorted(EXAMPLES.glob("*/README.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"],
        ids=lambda path: path.relative_to(ROOT).as_posix(),
    )
    def test_commands_in_the_docs_exist(self, path: Path, app: typer.Typer) -> None:
        for arguments in commands_in(path.read_text(encoding="utf-8")):
            assert problems_of(app, arguments) == [], arguments
            for word in arguments:
                if word.endswith("run.toml"):
                    assert (ROOT / word).is_file(), word

    def test_each_example_says_how_to_start_it(self) -> None:
        for path in EXAMPLES.glob("*/README.md"):
            assert {"start", "join"} <= {arguments[0] for arguments in commands_in(path.read_text())}


class TestTheCheckItself:
    """So that a checker that accepts everything cannot pass for a good one."""

    @pytest.fixture()
    def small(self) -> typer.Typer:
        app = typer.Typer()

        @app.command()
        def join(
            invite: str,
            listen: Annotated[str, typer.Option("--listen")] = "",
            no_dht: Annotated[bool, typer.Option("--no-dht")] = False,
        ) -> None:
            raise AssertionError("a checked command line must not run")

        @app.command()
        def demo() -> None:
            raise AssertionError("a checked command line must not run")

        return app

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("join X --listen 0.0.0.0:1 --no-dht", ""),
            ("join X --listen=0.0.0.0:1", ""),
            ("--help", ""),
            ("demo", ""),
            ("leave X", "no command leave"),
            ("join", "takes 1 arguments (1 required), not 0"),
            ("join X Y", "not 2"),
            ("join X --lisen=0.0.0.0:1", "no flag --lisen"),
            ("join X --no-dht=1", "takes no value"),
            ("join X --listen", "needs a value"),
            ("join X --listen=7700", "--listen"),
            ("join X --listen=0.0.0.0:70000", "--listen"),
        ],
    )
    def test_wrong_lines_are_found(self, small: typer.Typer, line: str, problem: str) -> None:
        problems = problems_of(small, shlex.split(line))
        assert bool(problems) == bool(problem)
        assert problem in " ".join(problems)

    def test_lines_are_found_in_text(self) -> None:
        text = "Say:\n\n    p2ptrain join @a \\\n        --no-dht  # why\n\n#     /opt/bin/p2ptrain demo\n"
        text += "p2ptrain is a program\n```sh\n$ p2ptrain --help\n```\n"
        assert commands_in(text) == [["join", "@a", "--no-dht"], ["demo"], ["--help"]]
