"""From a model's name to its layer list. Decides what may run: registered names, or code the user trusts by name.

A manifest can only name things; ``module:attribute`` is looked up on this machine and runs only if exactly that name is
in ``trusted`` (the joiner's ``--trust NAME``). Such an attribute is called with the options and returns a list of
``torch.nn.Module``, each taking the output of the one before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from p2ptrain.errors import ConfigError
from p2ptrain.models.shapes import ByteGPTShape

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class _Entry:
    shape: type[ByteGPTShape]  # its fields are the options; imports no torch
    builder: str  # "module:function", imported when the model is built


_MODELS: dict[str, _Entry] = {"byte_gpt": _Entry(ByteGPTShape, "p2ptrain.models.byte_gpt:build")}


def model_names() -> tuple[str, ...]:
    return tuple(sorted(_MODELS))


def model_shape(name: str, options: Mapping[str, Any]) -> ByteGPTShape | None:
    """Checked options of a registered model, without torch; None for ``module:attribute`` (only building tells).

    Raises ConfigError for an unknown name or option, or options that clash.
    """
    if ":" in name:
        if taken := {"name", "trusted"} & set(options):
            raise ConfigError(f"model {name}: an option cannot be called {min(taken)!r}", key=min(taken))
        return None
    entry = _entry(name)
    known = [f.name for f in fields(entry.shape)]
    for key in options:
        if key not in known:
            raise ConfigError(f"model {name}: unknown option {key!r}", hint=f"it takes {', '.join(known)}", key=key)
    return entry.shape(**options)


def model_by_name(name: str, *, trusted: Collection[str] = (), **options: Any) -> list[nn.Module]:
    """Build the layer list. The same name and options give the same bits on every peer (registered models).

    Raises ConfigError: unknown name or option, a ``module:attribute`` that is not trusted, cannot be found, or does
    not return a list of modules.
    """
    if ":" in name:
        return _layers(name, _trusted_attribute(name, trusted)(**options))
    shape = model_shape(name, options)
    return _layers(name, resolve(_entry(name).builder)(shape))


def resolve(path: str) -> Callable[..., Any]:
    """Import ``module:attribute``. Raises ConfigError if it is not there."""
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be found on this machine: {error}", hint="install the module that provides it", key="name"
        ) from error


def _trusted_attribute(name: str, trusted: Collection[str]) -> Callable[..., Any]:
    if name not in trusted:
        raise ConfigError(
            f"the run wants to execute {name}, which is not part of p2ptrain",
            hint=f"if you know and trust that code on this machine, pass --trust {name}",
            key="name",
        )
    return resolve(name)


def _entry(name: str) -> _Entry:
    if name not in _MODELS:
        raise ConfigError(f"unknown model {name!r}", hint=f"known models: {', '.join(model_names())}", key="name")
    return _MODELS[name]


def _layers(name: str, made: Any) -> list[nn.Module]:
    from torch import nn

    if not isinstance(made, (list, tuple)) or not made or not all(isinstance(layer, nn.Module) for layer in made):
        raise ConfigError(f"{name} did not return a list of torch modules but {type(made).__name__}", key="name")
    return list(made)
