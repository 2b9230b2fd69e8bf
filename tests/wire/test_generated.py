"""The committed code is what the generator makes, and it loads without asking for one protobuf runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import p2ptrain.wire.v1 as generated
from p2ptrain.wire.v1 import peer_pb2, peer_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def generator() -> ModuleType:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is a development dependency")
    spec = importlib.util.spec_from_file_location("generate_proto", ROOT / "tools" / "generate_proto.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_code_is_up_to_date(generator: ModuleType) -> None:
    assert generator.main(["--check"]) == 0


def test_check_fails_on_a_difference_and_changes_nothing(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / generator.PACKAGE
    target.mkdir(parents=True)
    stale = target / "gone_pb2.py"
    stale.write_text("old\n")
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    assert generator.main(["--check"]) == 1
    assert [path.name for path in target.iterdir()] == [stale.name]
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    assert not stale.exists()


def test_output_of_another_shape_is_not_edited(generator: ModuleType) -> None:
    with pytest.raises(SystemExit, match="runtime check is not where it was"):
        generator.edited("x_pb2.py", "import something\n")
    with pytest.raises(SystemExit, match="unexpected import"):
        generator.edited("x_pb2.py", "import values_pb2 as values__pb2\n")


def test_no_module_ties_itself_to_one_protobuf_runtime() -> None:
    folder = Path(generated.__file__).parent
    modules = sorted(folder.glob("*_pb2.py"))
    assert modules
    assert [path.name for path in modules if "runtime_version" in path.read_text()] == []


def test_the_package_keeps_out_of_the_global_pool() -> None:
    """Other packages (hivemind's among them) register protos without a package."""
    assert {peer_pb2.DESCRIPTOR.package, peer_pb2.Envelope.DESCRIPTOR.file.package} == {"p2ptrain.wire.v1"}
    methods = [method.name for method in peer_pb2.DESCRIPTOR.services_by_name["Peer"].methods]
    assert methods == ["Link", "DialBack"]
    assert hasattr(peer_pb2_grpc, "PeerStub")
