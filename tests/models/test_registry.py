from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from p2ptrain.errors import ConfigError
from p2ptrain.models import model_by_name, model_names, model_shape

CALLED: list[dict[str, Any]] = []


def own_model(**options: Any) -> Any:
    CALLED.append(options)
    return [nn.Linear(options["width"], 1)] if "width" in options else "no layers"


HERE = f"{__name__}:own_model"


def test_names() -> None:
    assert "byte_gpt" in model_names()


def test_code_that_is_not_trusted_is_not_even_imported() -> None:
    for trusted in ((), ("json:loads",), (HERE + "x",)):
        with pytest.raises(ConfigError, match=r"--trust json\.tool:main"):
            model_by_name("json.tool:main", trusted=trusted)
    assert "json.tool" not in sys.modules


def test_trusted_code_runs_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or sys.modules["__main__"])
    monkeypatch.setattr(sys.modules[__name__], "own_model", own_model, raising=False)
    assert model_shape(HERE, {"width": 3}) is None
    layers = model_by_name(HERE, trusted={HERE}, width=3)
    assert isinstance(layers[0], nn.Linear) and CALLED[-1] == {"width": 3}
    with pytest.raises(ConfigError, match="did not return a list"):
        model_by_name(HERE, trusted={HERE})


@pytest.mark.parametrize("name", ["no_such_module:x", "json:no_such", "json:", ":x"])
def test_trusted_code_that_is_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be found"):
        model_by_name(name, trusted={name})


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("byte_bert", {}, "name"),
        ("byte_gpt", {"depth": 3}, "depth"),
        ("byte_gpt", {"trusted": True}, "trusted"),
        ("a:b", {"trusted": "a:b"}, "trusted"),
        ("byte_gpt", {"layers": 0}, "layers"),
        ("byte_gpt", {"layers": True}, "layers"),
        ("byte_gpt", {"width": 1.5}, "width"),
        ("byte_gpt", {"width": 100, "heads": 3}, "width"),
        ("byte_gpt", {"width": 12, "heads": 4}, "width"),
        ("byte_gpt", {"layers": 10**9}, "layers"),
    ],
)
def test_wrong_options_name_their_key(name: str, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model_shape(name, options)
    assert caught.value.fields["key"] == key


def test_names_and_sizes_are_known_without_torch() -> None:
    code = (
        "import sys\n"
        "from p2ptrain.models import model_names, model_shape, training_memory\n"
        "from p2ptrain.data import dataset_names, check_dataset\n"
        "check_dataset('python_stdlib', {})\n"
        "print(model_shape('byte_gpt', {}).parameters(), 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == ["851968", "False", "False"]
