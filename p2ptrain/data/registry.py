"""From a data set's name to its corpus and its microbatches. Decides what may be read: registered names only.

Sources that read a path named by the manifest ask for that path in ``trusted`` (the joiner's ``--trust``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from p2ptrain.data.corpus import Corpus
from p2ptrain.data.sources import python_stdlib, token_file
from p2ptrain.errors import ConfigError

if TYPE_CHECKING:
    from p2ptrain.data.windows import Windows

_SOURCES: dict[str, Callable[..., Corpus]] = {"python_stdlib": python_stdlib, "token_file": token_file}


def dataset_names() -> tuple[str, ...]:
    return tuple(sorted(_SOURCES))


def corpus_by_name(name: str, *, trusted: Collection[str] = (), **options: Any) -> Corpus:
    """Read the corpus from this machine. Raises ConfigError: unknown name or option, not trusted, not readable."""
    check_dataset(name, options)
    if name == "token_file":
        options["trusted"] = trusted
    return _SOURCES[name](**options)


def check_dataset(name: str, options: Mapping[str, Any]) -> None:
    """Raises ConfigError: unknown name, unknown or missing option. Reads nothing."""
    if name not in _SOURCES:
        raise ConfigError(f"unknown data {name!r}", hint=f"known data: {', '.join(dataset_names())}", key="name")
    taken = {
        key: parameter
        for key, parameter in inspect.signature(_SOURCES[name]).parameters.items()
        if key not in ("trusted", "folder")
    }
    for key in options:
        if key not in taken:
            raise ConfigError(f"data {name}: unknown option {key!r}", hint=f"it takes {', '.join(taken)}", key=key)
    for key, parameter in taken.items():
        if parameter.default is parameter.empty and key not in options:
            raise ConfigError(f"data {name}: option {key} is missing", key=key)


def dataset_by_name(
    name: str,
    *,
    context: int,
    samples: int,
    seed: int = 0,
    corpus: Corpus | None = None,
    trusted: Collection[str] = (),
    **options: Any,
) -> Windows:
    """Microbatches of ``samples`` windows of ``context`` tokens. ``corpus``: one that was pulled, instead of reading.

    Raises ConfigError as ``corpus_by_name`` does, and if the corpus is too short for one window.
    """
    from p2ptrain.data.windows import Windows

    if corpus is None:
        corpus = corpus_by_name(name, trusted=trusted, **options)
    return Windows(corpus, context=context, samples=samples, seed=seed)
