"""Run by a test: a parent that uses the DHT client, tells what it started and imported, and waits to be killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from p2ptrain.net.dht import DhtDirectory, DhtSettings
from tests.net.dht_support import RUN, info_of, seal, unseal


async def main(initial_peer: str) -> None:
    own = DhtDirectory(RUN, seal, unseal, DhtSettings(listen="127.0.0.1:0", checker=""))
    await own.start((initial_peer,))
    announced = await own.announce(info_of("parent"), 600.0)
    found: tuple[object, ...] = ()
    while not found:  # the test has a deadline
        found = await own.find(5)
        await asyncio.sleep(0.1)
    heavy = sorted({name.split(".")[0] for name in sys.modules} & {"hivemind", "torch", "grpc"})
    assert own._helper is not None
    told = {"helper": own._helper.pid, "folder": own._helper.socket_folder, "announced": announced, "heavy": heavy}
    print(json.dumps(told), flush=True)
    if os.fork() == 0:  # a child, as a data loader would be, that holds the socket open beyond our death
        os.close(1)
        os.read(0, 1)
        os._exit(0)
    await asyncio.sleep(600)


asyncio.run(main(sys.argv[1]))
