"""What a peer keeps up beside training: its status and last known peers on disk, and the DHT. Nothing waits for it.

Decides how often, and where a newcomer looks for members: the invite, the last known peers, the DHT, all at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from typing import TYPE_CHECKING

from p2ptrain.core import events as ev
from p2ptrain.errors import P2PTrainError
from p2ptrain.net.dht_cache import load_last_peers, save_last_peers
from p2ptrain.runtime.driver import ANNOUNCE_LIFE_S
from p2ptrain.runtime.status import status_of

if TYPE_CHECKING:
    from p2ptrain.net.dht import DhtDirectory
    from p2ptrain.runtime.network import Network

logger = logging.getLogger("p2ptrain")

STATUS_EVERY_S = 1.0
FIND_EVERY_S = 20.0
FOUND_DIAL_S = 4.0
DHT_STOP_S = 3.0


class Beside:
    """``dht_addresses``: of the own DHT helper, once it stands."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.dht_addresses: tuple[str, ...] = ()
        self.directory: DhtDirectory | None = None
        self._saved_peers: tuple[tuple[str, tuple[str, ...]], ...] = ()

    async def stop(self) -> None:
        """End the DHT helper; the files are written a last time by ``save_peers`` and ``save_status``."""
        if self.directory is not None:
            with contextlib.suppress(P2PTrainError, asyncio.TimeoutError):
                await asyncio.wait_for(self.directory.stop(), DHT_STOP_S)

    def contacts(self) -> list[str]:
        """Addresses from the invite and from before, our own left out."""
        known = list(self.network.session.invite.addresses)
        known += [a for info in load_last_peers(self.network.session.folder.path) for a in info.addresses]
        return [a for a in dict.fromkeys(known) if a not in self.network.addresses]

    def save_peers(self) -> None:
        """Kept as soon as they change: a killed process has no other time for it."""
        infos = [info for info in self.network.members_to_ask() if info.diallable]
        known = tuple(sorted((info.peer, info.addresses) for info in infos))
        if infos and known != self._saved_peers:
            self._saved_peers = known
            try:
                save_last_peers(self.network.session.folder.path, infos)
            except OSError as error:
                logger.warning("the last known peers could not be kept: %s", error.strerror)

    def save_status(self) -> None:
        path = self.network.session.folder.status
        try:
            temporary = path.with_suffix(".tmp")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(status_of(self.network), file)
            temporary.replace(path)
        except OSError as error:
            logger.debug("status not written: %s", error.strerror)

    async def write_status(self) -> None:
        while True:
            self.save_status()
            self.save_peers()
            if self.network.transport is not None:
                self.network.transport.end_revoked()
            await asyncio.sleep(STATUS_EVERY_S)

    async def run_dht(self) -> None:
        """The DHT comes up beside; what it finds is one more way to members, also before one has been met."""
        from p2ptrain.net.dht import DhtDirectory, DhtSettings
        from p2ptrain.net.dht_seal import sealing

        network, session = self.network, self.network.session
        settings = DhtSettings(
            listen=str(session.settings.dht_listen),
            folder=session.folder.path,
            client_mode=session.settings.outbound_only,
        )
        seal, unseal = sealing(session.identity, session.invite.run)
        directory = DhtDirectory(session.invite.run, seal, unseal, settings)
        self.directory = directory
        try:
            self.dht_addresses = await directory.start(session.invite.dht_peers)
        except P2PTrainError as error:
            logger.warning("goes on without the DHT: %s", error)
            return
        announced = False
        while True:
            if network.driver is not None and not announced:
                network.driver.directory = directory
                announced = await directory.announce(network.driver.info, ANNOUNCE_LIFE_S)
            found = await directory.find(50)
            if found and network.driver is not None:
                network.driver.post(ev.PeersFound(found))
            elif network.transport is not None:
                for info in found:
                    network.transport.dial(info.peer, info.addresses, FOUND_DIAL_S)
            await asyncio.sleep(FIND_EVERY_S if network.driver is not None and announced else 1.0)

    def dht_status(self) -> str:
        return self.directory.status().describe() if self.directory is not None else "DHT off"
