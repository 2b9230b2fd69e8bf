"""G6 with real TLS clients: who gets in, who does not, and what each of them learns."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import grpc
import pytest
from grpc import aio

from p2ptrain.core.events import DialFailed, LinkUp, Received
from p2ptrain.core.messages import Probe
from p2ptrain.errors import AdmissionError
from p2ptrain.net import certificates
from p2ptrain.net.certificates import Credentials, Intermediate
from p2ptrain.net.identity import Identity
from p2ptrain.net.settings import BULK_METHOD, DIAL_BACK_METHOD, LINK_METHOD, PULSE_METHOD, NetSettings
from p2ptrain.wire import translate
from tests.net.swarm import Peer, TestRun, in_loop, raw_channel
from tests.net.test_certificates import forged_leaf

DENIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED)


@contextmanager
def another_day(monkeypatch: pytest.MonkeyPatch, **shift: float) -> Iterator[None]:
    """Certificates made in here are made that much earlier."""
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_now", lambda: datetime.now(timezone.utc) - timedelta(**shift))
        yield


async def attempt(host: Peer, credentials: Credentials | None, sends: bytes) -> aio.AioRpcError:
    """Say ``sends`` on a Link call and give the error that comes back; it must come."""
    channel = raw_channel(host, credentials)
    try:
        call = channel.stream_stream(LINK_METHOD)(timeout=20)
        await call.write(sends)
        while await call.read() is not aio.EOF:
            pass
        assert await call.code() is not grpc.StatusCode.OK
        raise await _as_error(call)
    except aio.AioRpcError as error:
        return error
    finally:
        await channel.close()


async def _as_error(call: aio.StreamStreamCall) -> aio.AioRpcError:
    return aio.AioRpcError(await call.code(), aio.Metadata(), aio.Metadata(), await call.details())


@in_loop
async def test_a_member_gets_in() -> None:
    run = TestRun()
    host, member = await Peer(run).start(), Peer(run, listen="")
    channel = raw_channel(host, run.credentials(member.identity))
    call = channel.stream_stream(LINK_METHOD)(timeout=20)
    await call.write(translate.to_bytes(member.hello()))
    hello = translate.from_bytes(bytes(await call.read()), strict=True)
    assert hello == host.hello()
    await call.write(translate.to_bytes(Probe(7)))
    assert (await host.wait(Received)).sender.peer == member.id
    await channel.close()
    await host.stop()


CASES = ["none", "foreign invite", "foreign run", "expired", "leaf of a leaf", "no invite sent"]


@in_loop
@pytest.mark.parametrize("case", CASES)
async def test_tls_turns_away(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, foreign, identity = TestRun(), TestRun(), Identity.generate()
    host = await Peer(run).start()
    member = run.credentials()
    credentials: Credentials | None
    if case == "none":
        credentials = None
    elif case == "foreign invite":
        own = TestRun()
        credentials = Credentials.issue(identity, own.invite, run.root.certificate)
    elif case == "foreign run":
        credentials = foreign.credentials(identity)
    elif case == "expired":
        with another_day(monkeypatch, days=2):
            old = Intermediate.create(run.root, 3600)
        credentials = Credentials.issue(identity, old, run.root.certificate)
    elif case == "leaf of a leaf":
        signer = Intermediate(member.leaf, member.identity.key)
        credentials = Credentials.issue(identity, signer, run.root.certificate)
        chain = b"".join(map(certificates.pem, (credentials.leaf, member.leaf, member.intermediate)))
        monkeypatch.setattr(Credentials, "chain_pem", property(lambda _: chain))
    else:
        credentials = run.credentials(identity)
        chain = certificates.pem(credentials.leaf)
        monkeypatch.setattr(Credentials, "chain_pem", property(lambda _: chain))
    claimant = Peer(run, identity=identity, listen="", credentials=run.credentials(identity))
    error = await attempt(host, credentials, translate.to_bytes(claimant.hello()))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert host.events == []
    await host.stop()


@in_loop
async def test_a_second_level_of_invites_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Path length 0: an invite cannot make invites that outlive its own revocation."""
    run, identity = TestRun(), Identity.generate()
    host = await Peer(run).start()
    sub_root = certificates.Root(run.invite.certificate, run.invite.key)
    monkeypatch.setattr(certificates, "run_of", lambda _: run.run)
    sub = Intermediate.create(sub_root, 600)
    credentials = Credentials.issue(identity, sub, run.root.certificate)
    chain = b"".join(map(certificates.pem, (credentials.leaf, sub.certificate, run.invite.certificate)))
    monkeypatch.setattr(Credentials, "chain_pem", property(lambda _: chain))
    error = await attempt(host, credentials, b"")
    assert error.code() is grpc.StatusCode.UNAVAILABLE and host.events == []
    await host.stop()


@in_loop
async def test_a_member_cannot_take_anothers_name_as_a_caller() -> None:
    run, victim, thief = TestRun(), Identity.generate(), Identity.generate()
    host = await Peer(run).start()
    forged = Credentials(thief, forged_leaf(run, thief, victim.peer), run.invite.certificate, run.root.certificate)
    replayed = Peer(run, identity=victim, listen="").hello()  # the victim's own signed Hello, overheard
    error = await attempt(host, forged, translate.to_bytes(replayed))
    assert error.code() in DENIED and "not the hash of its key" in (error.details() or "")
    honest_leaf = await attempt(host, run.credentials(thief), translate.to_bytes(replayed))
    assert "another peer than the certificate" in (honest_leaf.details() or "")
    assert host.events == []
    await host.stop()


@in_loop
async def test_a_member_cannot_take_anothers_name_as_an_answerer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thief signs a leaf with the victim's name, listens, and plays the victim's overheard Hello."""
    run, victim, thief_identity = TestRun(), Identity.generate(), Identity.generate()
    leaf = forged_leaf(run, thief_identity, victim.peer)
    forged = Credentials(thief_identity, leaf, run.invite.certificate, run.root.certificate)
    monkeypatch.setattr("p2ptrain.net.transport.check_own_chain", lambda *_: None)
    replayed = Peer(run, identity=victim, listen="").hello()
    thief = await Peer(run, identity=thief_identity, credentials=forged, claims={"info": replayed.info}).start()
    caller = await Peer(run).start()
    caller.transport.dial(victim.peer, thief.addresses, 20.0)
    failed = await caller.wait(DialFailed)
    assert failed.failure == "certificate" and not caller.of(LinkUp)
    await caller.stop()
    await thief.stop()


@in_loop
async def test_a_revoked_invite_ends_at_the_door_both_ways(caplog: pytest.LogCaptureFixture) -> None:
    run, revoked = TestRun(), set()
    second = Intermediate.create(run.root, 3600)
    host = await Peer(run, revoked=lambda: revoked).start()
    identity = Identity.generate()
    credentials = Credentials.issue(identity, second, run.root.certificate)
    guest = await Peer(run, identity=identity, credentials=credentials).start()
    guest.dial(host)
    await guest.wait(LinkUp)
    guest.transport.hangup(host.id, "to come back")
    revoked.add(second.serial)
    with caplog.at_level(logging.WARNING, "p2ptrain.net"):
        guest.dial(host)
        failed = await guest.wait(DialFailed)
    assert failed.failure == "certificate" and "revoked" in failed.detail and "new one" in failed.detail
    assert any("revoked" in record.getMessage() for record in caplog.records), "the other side logs the reason"
    host.dial(guest)
    assert "revoked" in (await host.wait(DialFailed)).detail
    other = await Peer(run).start()
    other.dial(host)
    await other.wait(LinkUp)  # the first invite goes on
    for peer in (host, guest, other):
        await peer.stop()


@in_loop
async def test_a_foreign_run_is_told_so() -> None:
    host, stranger = await Peer(TestRun()).start(), await Peer(TestRun()).start()
    for known in (True, False):
        start = len(stranger.events)
        stranger.dial(host, known=known)
        failed = await stranger.wait(DialFailed, after=start)
        assert failed.failure == "foreign_run" and "another run" in failed.detail
    await host.stop()
    await stranger.stop()


@in_loop
async def test_an_expired_member_learns_it_before_and_while_dialling(monkeypatch: pytest.MonkeyPatch) -> None:
    run = TestRun()
    host = await Peer(run).start()
    with another_day(monkeypatch, days=2):
        run.invite = Intermediate.create(run.root, 3600)
    with pytest.raises(AdmissionError, match="expired"):
        Peer(run)
    monkeypatch.setattr("p2ptrain.net.transport.check_own_chain", lambda *_: None)  # its own clock is two days behind
    late = await Peer(run).start()
    for known in (True, False):
        start = len(late.events)
        late.dial(host, known=known)
        failed = await late.wait(DialFailed, after=start)
        assert failed.failure == "certificate" and "clock" in failed.detail, failed
    host.dial(late)
    failed = await host.wait(DialFailed)
    assert failed.failure == "certificate" and "expired" in failed.detail
    await host.stop()
    await late.stop()


@in_loop
@pytest.mark.parametrize("method", [BULK_METHOD, DIAL_BACK_METHOD])
async def test_without_a_link_nothing_else_is_served(method: str) -> None:
    run = TestRun()
    host, member = await Peer(run).start(), Identity.generate()
    channel = raw_channel(host, run.credentials(member))
    call = channel.stream_stream(method)(timeout=20)
    await call.write(translate.dial_back_to_bytes(translate.DialBack(host.addresses[0])))
    with pytest.raises(aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION and "no link" in (caught.value.details() or "")
    await channel.close()
    await host.stop()


@in_loop
async def test_the_health_service_answers_members_and_nobody_else() -> None:
    health = pytest.importorskip("grpc_health.v1.health_pb2")
    stubs = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
    run = TestRun()
    host = await Peer(run).start()
    channel = raw_channel(host, run.credentials())
    stub = stubs.HealthStub(channel)
    for service in ("", "p2ptrain.wire.v1.Peer"):
        reply = await stub.Check(health.HealthCheckRequest(service=service), timeout=20)
        assert reply.status == health.HealthCheckResponse.SERVING
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.Check(health.HealthCheckRequest(service="other"), timeout=20)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(health.HealthCheckRequest(), timeout=20)
    assert (await watch.read()).status == health.HealthCheckResponse.SERVING
    host.transport._health.stop_serving()
    assert (await watch.read()).status == health.HealthCheckResponse.NOT_SERVING
    await channel.close()
    stranger = raw_channel(host, None)
    with pytest.raises(aio.AioRpcError):
        await stubs.HealthStub(stranger).Check(health.HealthCheckRequest(), timeout=20)
    await stranger.close()
    await host.stop()


@in_loop
async def test_who_says_no_hello_is_sent_away() -> None:
    run = TestRun()
    host = await Peer(run, settings=NetSettings(hello_timeout_s=0.2)).start()
    channel = raw_channel(host, run.credentials())
    call = channel.stream_stream(LINK_METHOD)(timeout=20)
    with pytest.raises(aio.AioRpcError) as caught:
        await call.read()
    assert "no Hello" in (caught.value.details() or "")
    pulse = channel.stream_stream(PULSE_METHOD)(timeout=20)
    await pulse.write(b"p")
    pulse.cancel()
    await channel.close()
    assert host.events == []
    await host.stop()
