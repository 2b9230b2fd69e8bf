"""Import every module of ``p2ptrain.wire`` and ``p2ptrain.net`` and say with which grpcio and protobuf: for CI.

The DHT helper's own modules are left out: they alone import hivemind, in a process of its own. Fails if torch or
hivemind gets in.

    python tools/import_net.py
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib import metadata

LEFT_OUT = frozenset({"p2ptrain.net.dht_helper", "p2ptrain.net.dht_node"})
HEAVY = ("torch", "hivemind")


def main() -> int:
    imported = [name for package in ("p2ptrain.wire", "p2ptrain.net") for name in _import_all(package)]
    heavy = [name for name in HEAVY if name in sys.modules]
    if heavy:
        print(f"imported by the way: {', '.join(heavy)}", file=sys.stderr)
        return 1
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("grpcio", "protobuf"))
    print(f"{len(imported)} modules of wire and net import with {versions}")
    return 0


def _import_all(package: str) -> list[str]:
    root = importlib.import_module(package)
    names = [info.name for info in pkgutil.walk_packages(root.__path__, package + ".")]
    wanted = [name for name in names if name not in LEFT_OUT]
    for name in wanted:
        importlib.import_module(name)
    return [package, *wanted]


if __name__ == "__main__":
    sys.exit(main())
