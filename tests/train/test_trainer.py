from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from p2ptrain.core.events import (
    Applied,
    Apply,
    BundleDone,
    BundleFailed,
    Compute,
    HealSlices,
    LoadState,
    MicrobatchDone,
    Pin,
    PinFailed,
    Shrink,
    SlicesHealed,
    SnapshotPinned,
    StateFailed,
    StateLoaded,
    Unpin,
)
from p2ptrain.core.types import Record
from p2ptrain.errors import TrainingError, TransferError
from p2ptrain.models.forward import held_out_loss, next_token_loss
from p2ptrain.train.flat import FlatStage
from p2ptrain.train.optimizer import AdamWOptions, AdamWStep, Powers, clip_factor
from p2ptrain.train.trainer import TrainerOptions
from tests.train.hand import Hand, Parts, record_of, tiny_layers, tiny_windows

OPTIONS = TrainerOptions(AdamWOptions(learning_rate=1e-2))
SCALE = 2.0**-24


class GatedData:
    """Stops the training thread inside the microbatches named, until ``go`` is set."""

    def __init__(self, *stops: int) -> None:
        self._data = tiny_windows()
        self._stops = set(stops)
        self.reached = threading.Event()
        self.go = threading.Event()

    def microbatch(self, id: int) -> tuple[Tensor, Tensor]:
        if id in self._stops:
            self.reached.set()
            assert self.go.wait(30)
        return self._data.microbatch(id)


class PoisonedData:
    """Some ids go with a factor of NaN, which a hook multiplies into the model."""

    factor = 1.0

    def __init__(self, *poisoned: int) -> None:
        self._data = tiny_windows()
        self._poisoned = poisoned

    def microbatch(self, id: int) -> tuple[Tensor, Tensor]:
        PoisonedData.factor = float("nan") if id in self._poisoned else 1.0
        return self._data.microbatch(id)


class BrokenData:
    def microbatch(self, id: int) -> tuple[Tensor, Tensor]:
        raise OSError(f"disk failed at {id}")


def step_once(hand: Hand, ids: range, codec: str = "none", **named: Any) -> Record:
    tensor, done = hand.compute(ids)
    record = record_of(hand.parts, hand.round + 1, [(tensor, done.ids)], codec_name=codec, **named)
    hand.apply(record)
    hand.trainer.forget_round(hand.round + 1)
    return record


# --- computing


def test_one_peer_equals_plain_training_step_by_step() -> None:
    """Loss by loss and bit by bit: sum of gradients, division, clipping, update."""
    plain, windows, powers = FlatStage(tiny_layers()), tiny_windows(), Powers()
    with Hand(OPTIONS) as hand:
        for round in range(4):
            plain.gradients.zero_()
            losses = []
            for id in range(4 * round, 4 * round + 4):
                loss = next_token_loss(plain.layers, *windows.microbatch(id))
                loss.backward()
                losses.append(loss.item())
            plain.gradients.div_(4)
            tensor, done = hand.compute(range(4 * round, 4 * round + 4))
            assert torch.equal(tensor, plain.gradients)
            assert done.loss_sum == sum(losses)
            record = record_of(hand.parts, round + 1, [(tensor, done.ids)])
            clip = clip_factor(record.norm_sq**0.5, OPTIONS.optimizer.clip_norm)
            step = AdamWStep(OPTIONS.optimizer, powers, round, clip, plain.device)
            step.apply(plain.parameters, plain.exp_avg, plain.exp_avg_sq, plain.gradients)
            powers = step.powers
            hand.apply(record)
            hand.trainer.forget_round(round + 2)
            assert torch.equal(hand.stage.values, plain.values)


@pytest.mark.parametrize("codec", ["none", "fp16", "bf16", "int8"])
def test_learning_happens(codec: str) -> None:
    held = tiny_windows().held_out(4)
    with Hand(TrainerOptions(OPTIONS.optimizer, chunk_values=512)) as hand:
        before = hand.trainer.ask(lambda layers: held_out_loss(layers, held)).result(30)
        for round in range(25):
            step_once(hand, range(2 * round, 2 * round + 2), codec, chunk_values=512)
        after = hand.trainer.ask(lambda layers: held_out_loss(layers, held)).result(30)
    assert after < 0.75 * before


def test_peers_that_apply_the_same_records_hold_the_same_bits() -> None:
    parts = Parts()
    with Hand(OPTIONS, parts=parts) as first, Hand(OPTIONS, parts=parts) as second:
        for round in range(3):
            a, done_a = first.compute(range(4 * round, 4 * round + 1))
            b, done_b = second.compute(range(4 * round + 1, 4 * round + 4))
            record = record_of(parts, round + 1, [(a, done_a.ids), (b, done_b.ids)], codec_name="int8")
            assert first.apply(record).base == second.apply(record).base
        assert first.digest() == second.digest()


def test_microbatches_are_reported_and_bundles_kept_until_forgotten() -> None:
    with Hand() as hand:
        hand.trainer.submit(Compute(0, 1, 7, (3, 1)))
        first, second, done = hand.next_event(), hand.next_event(), hand.next_event()
        assert isinstance(first, MicrobatchDone) and isinstance(second, MicrobatchDone)
        assert (first.id, second.id) == (3, 1)
        assert first.seconds > 0
        assert done == BundleDone(1, 7, (3, 1), first.loss + second.loss)
        assert hand.trainer.bundle(0, 1, 7).shape == (hand.stage.size,)
        for stage, round, index in [(1, 1, 7), (0, 2, 7), (0, 1, 6)]:
            with pytest.raises(KeyError):
                hand.trainer.bundle(stage, round, index)
        hand.trainer.forget_round(2)
        with pytest.raises(KeyError):
            hand.trainer.bundle(0, 1, 7)


@pytest.mark.parametrize(("exact", "buffers"), [(False, 2), (True, 1)])
def test_buffers_are_exchanged_and_used_again(exact: bool, buffers: int) -> None:
    options = TrainerOptions(OPTIONS.optimizer, exact=exact, microbatches=2, first_scale=SCALE)
    with Hand(options) as hand, Hand(options) as other:
        addresses = set()
        for round in range(6):
            tensor, _ = hand.compute(range(2))
            assert torch.equal(tensor, other.compute(range(2))[0])
            addresses.add(tensor.data_ptr())
            codec = "exact" if exact else "none"
            record = record_of(hand.parts, round + 1, [(tensor, (0, 1))], codec_name=codec, scale=SCALE)
            other.parts.held.update(hand.parts.held)
            hand.apply(record)
            other.apply(record)
            hand.trainer.forget_round(round + 2)
        assert len(addresses) == buffers  # the other keeps all of its own, and has the same sums


def test_two_bundles_of_a_round_are_independent() -> None:
    with Hand() as hand, Hand() as other:
        first, _ = hand.compute((0, 1), index=0)
        kept = first.clone()
        second, _ = hand.compute((2, 3), index=1)
        assert torch.equal(first, kept)
        assert torch.equal(second, other.compute((2, 3))[0])


# --- interruptions


def test_shrink_drops_ids_that_have_not_started() -> None:
    data = GatedData(0)
    with Hand(data=data) as hand:
        hand.trainer.submit(Compute(0, 1, 0, (0, 1, 2, 3)))
        assert data.reached.wait(30)
        hand.trainer.submit(Shrink(1, (0, 1, 3)))  # 0 runs already: it stays
        data.go.set()
        assert hand.wait(BundleDone).ids == (0, 2)


def test_seal_ends_the_bundle_after_the_running_microbatch() -> None:
    data = GatedData(1)
    with Hand(data=data) as hand, Hand() as other:
        hand.trainer.submit(Compute(0, 1, 0, (0, 1, 2, 3)))
        hand.trainer.submit(Compute(0, 1, 1, (4, 5)))
        assert data.reached.wait(30)
        hand.trainer.submit(Shrink(1, (), seal=True))
        hand.trainer.submit(Compute(0, 1, 2, (6,)))  # ordered after the seal: not meant
        data.go.set()
        assert hand.wait(BundleDone).ids == (0, 1)
        assert torch.equal(hand.trainer.bundle(0, 1, 0), other.compute((0, 1))[0])
        assert hand.wait(BundleDone).ids == ()
        with pytest.raises(KeyError):
            hand.trainer.bundle(0, 1, 1)
        assert hand.wait(BundleDone).ids == (6,)


def test_a_decided_round_does_not_wait_for_its_stale_bundle() -> None:
    data = GatedData(11)
    with Hand(OPTIONS) as other:
        tensor, done = other.compute((0, 1))
        record = record_of(other.parts, 1, [(tensor, done.ids)])
    with Hand(OPTIONS, data=data, parts=other.parts) as hand:
        hand.trainer.submit(Compute(0, 1, 0, (10, 11, 12, 13)))
        hand.trainer.submit(Compute(0, 1, 1, (14,)))
        hand.trainer.submit(Compute(0, 2, 2, (20,)))  # of the next round: starts once this one is applied
        assert data.reached.wait(30)
        hand.trainer.submit(Apply(record, b"c", 1))
        data.go.set()
        events = [hand.next_event() for _ in range(7)]
    reason = "round decided without it"
    assert [type(event) for event in events[:2]] == [MicrobatchDone, MicrobatchDone]
    assert events[2] == BundleFailed(1, 0, (10, 11, 12, 13), reason)
    assert isinstance(events[3], Applied)
    assert events[4] == BundleFailed(1, 1, (14,), reason)
    assert isinstance(events[5], MicrobatchDone) and events[5].id == 20
    assert isinstance(events[6], BundleDone) and events[6].round == 2


def test_a_bundle_of_a_past_round_is_refused() -> None:
    with Hand(OPTIONS) as hand:
        step_once(hand, range(2))
        hand.trainer.submit(Compute(0, 1, 5, (9,)))
        assert hand.wait(BundleFailed) == BundleFailed(1, 5, (9,), "round is over")


def test_questions_and_pins_are_answered_in_the_middle_of_a_bundle() -> None:
    data = GatedData(1)
    with Hand(OPTIONS, data=data) as hand:
        genesis = Record(0, 0, 0, b"", b"", (), (), 0.0, 1.0, (), 0, 0)
        hand.trainer.submit(Compute(0, 1, 0, (0, 1, 2)))
        assert data.reached.wait(30)
        hand.trainer.submit(Pin(0, genesis, b"c"))
        answer = hand.trainer.ask(len)
        data.go.set()
        assert answer.result(30) == 3
        kinds = {type(hand.next_event()) for _ in range(5)}
        assert kinds == {MicrobatchDone, SnapshotPinned, BundleDone}


def test_stop_ends_a_stated_pause_and_cancels_questions() -> None:
    options = TrainerOptions(extra_wait_s=3600.0)
    data = GatedData(0)
    with Hand(options, data=data) as hand:
        hand.trainer.submit(Compute(0, 1, 0, (0, 1)))
        assert data.reached.wait(30)
        data.go.set()
    assert hand.failures.empty()
    assert hand.trainer.ask(len).cancelled()


def test_a_stated_pause_counts_as_time_of_the_microbatch() -> None:
    with Hand(TrainerOptions(extra_wait_s=0.05)) as hand:
        hand.trainer.submit(Compute(0, 1, 0, (0,)))
        assert hand.wait(MicrobatchDone).seconds >= 0.05


def test_a_stated_speed_is_a_least_time_changes_while_running_and_looking_up_does_not_shorten_it() -> None:
    with Hand(TrainerOptions(microbatch_least_s=3600.0)) as hand:
        hand.trainer.submit(Compute(0, 1, 0, (0,)))
        assert hand.trainer.ask(len).result(30) == 3  # while it waits, or before
        hand.trainer.pace(0.2)
        assert 0.2 <= hand.wait(MicrobatchDone).seconds < 3600.0
        hand.wait(BundleDone)
        hand.trainer.pace(3600.0)
        hand.trainer.submit(Compute(0, 1, 1, (1,)))
        hand.trainer.submit(Shrink(1, (), seal=True))  # called off: it does not wait on
        assert hand.wait(BundleDone).index == 1


# --- failures


@pytest.mark.parametrize("exact", [False, True])
def test_a_gradient_that_is_not_finite_is_refused_and_the_next_bundle_is_clean(exact: bool) -> None:
    options = TrainerOptions(exact=exact, microbatches=4, first_scale=SCALE)
    with Hand(options) as hand, Hand(options) as other:
        hand.trainer.ask(lambda layers: layers[-1].table.data.mul_(float("nan"))).result(30)
        hand.trainer.submit(Compute(0, 1, 0, (0, 1)))
        failed = hand.wait(BundleFailed)
        assert failed.ids == (0, 1) and "microbatch 0" in failed.reason
        with pytest.raises(KeyError):
            hand.trainer.bundle(0, 1, 0)
        hand.trainer.ask(lambda _: hand.stage.values.copy_(other.stage.values)).result(30)
        assert torch.equal(hand.compute((2, 3), index=1)[0], other.compute((2, 3))[0])


@pytest.mark.parametrize("exact", [False, True])
def test_a_finite_loss_with_an_infinite_gradient_is_refused(exact: bool) -> None:
    with Hand(TrainerOptions(exact=exact, microbatches=4, first_scale=SCALE)) as hand:
        hand.stage.layers[-1].table.register_hook(lambda gradient: gradient * float("inf"))
        hand.trainer.submit(Compute(0, 1, 0, (0,)))
        assert "not finite" in hand.wait(BundleFailed).reason


def test_exact_mode_refuses_single_microbatches_and_keeps_the_others() -> None:
    """Each gradient is taken alone, so one that is not finite leaves no trace in the sum of the others."""
    options = TrainerOptions(exact=True, microbatches=4, first_scale=SCALE)
    with Hand(options, data=PoisonedData(1, 2)) as hand, Hand(options) as other:
        hand.stage.layers[0].register_forward_hook(lambda *args: args[-1] * PoisonedData.factor)
        other.stage.layers[0].register_forward_hook(lambda *args: args[-1] * 1.0)
        tensor, done = hand.compute((0, 1, 2, 3))
        assert (done.ids, done.refused) == ((0, 3), (1, 2))
        assert torch.equal(tensor, other.compute((0, 3))[0])


def test_a_failure_of_data_ends_the_run_with_a_named_error() -> None:
    with Hand(data=BrokenData()) as hand:
        hand.trainer.submit(Compute(0, 1, 0, (4,)))
        failure = hand.failures.get(timeout=30)
    assert isinstance(failure, TrainingError)
    assert "disk failed at 4" in str(failure) and failure.exit_code == 8


@pytest.mark.parametrize("wrong", ["gap", "missing part", "round", "norm", "codec", "stage"])
def test_a_record_that_cannot_be_applied_changes_nothing_and_says_why(wrong: str) -> None:
    with Hand(OPTIONS) as hand:
        before = hand.digest()
        tensor, done = hand.compute((0, 1))
        record = record_of(hand.parts, 2 if wrong == "round" else 1, [(tensor, done.ids)])
        fields = {name: getattr(record, name) for name in Record.__slots__}
        if wrong == "gap":
            fields["parts"] = record.parts[1:]
        elif wrong == "missing part":
            del hand.parts.held[record.parts[1].digest]
        elif wrong == "norm":
            fields["norm_sq"] = float("inf")
        elif wrong == "codec":
            hand.parts.held[record.parts[0].digest] = ("exact", hand.parts.held[record.parts[0].digest][1])
        elif wrong == "stage":
            fields["stage"] = 1
        hand.trainer.submit(Apply(Record(**fields), b"c", 0))
        assert isinstance(hand.failures.get(timeout=30), TrainingError)
        assert hand.trainer._state.digest().hex() == before


def test_too_many_orders_are_refused() -> None:
    data = GatedData(0)
    with Hand(data=data) as hand:
        hand.trainer.submit(Compute(0, 1, 0, (0,)))
        assert data.reached.wait(30)
        with pytest.raises(TrainingError, match="256 orders"):
            for index in range(300):
                hand.trainer.submit(Compute(0, 1, index + 1, (1,)))
        data.go.set()


# --- snapshots and damage


@pytest.mark.parametrize("exact", [False, True])
def test_a_joiner_takes_a_snapshot_and_catches_up_to_the_same_bits(exact: bool) -> None:
    options = TrainerOptions(
        OPTIONS.optimizer, exact=exact, microbatches=8, first_scale=SCALE, snapshot_chunk_bytes=4096
    )
    named: dict[str, Any] = {"codec_name": "exact" if exact else "fp16", "scale": SCALE}
    parts = Parts()
    with Hand(options, parts=parts) as donor, Hand(options, parts=parts) as joiner:
        record = None
        for round in range(3):
            tensor, done = donor.compute(range(2 * round, 2 * round + 2))
            record = record_of(parts, round + 1, [(tensor, done.ids)], **named)
            donor.apply(record)
        assert record is not None
        donor.trainer.submit(Pin(0, record, donor.chain))
        info = donor.wait(SnapshotPinned).info
        assert (info.round, info.chain, info.total_bytes) == (3, donor.chain, 64 + 12 * donor.stage.size)
        tensor, done = donor.compute((6, 7))
        later = record_of(parts, 4, [(tensor, done.ids)], **named)
        base = donor.apply(later).base  # the pinned copy does not move

        joiner.trainer.open(info)
        for index in range(len(info.chunk_digests)):
            data = donor.trainer.chunk(info.key, index)
            assert not joiner.trainer.write(info.key, index, bytes([data[0] ^ 1]) + data[1:])
            assert joiner.trainer.write(info.key, index, data)
        joiner.trainer.submit(LoadState(info))
        loaded = joiner.wait(StateLoaded)
        assert loaded.key == info.key and loaded.base.chain == info.chain and loaded.base.slice_index == 3
        joiner.chain, joiner.round = info.chain, info.round
        assert joiner.apply(later).base == base
        assert joiner.digest() == donor.digest()

        donor.trainer.submit(Unpin(info.key))
        donor.digest()
        with pytest.raises(KeyError):
            donor.trainer.chunk(info.key, 0)


def test_snapshots_that_do_not_fit_are_named() -> None:
    with Hand(OPTIONS) as hand:
        record = step_once(hand, range(2))
        hand.trainer.submit(Pin(0, record, hand.chain))
        info = hand.wait(SnapshotPinned).info
        hand.trainer.submit(LoadState(info))
        assert "no snapshot" in hand.wait(StateFailed).reason
        hand.trainer.open(info)
        hand.trainer.submit(LoadState(info))
        assert "missing" in hand.wait(StateFailed).reason
        with pytest.raises(KeyError):
            hand.trainer.chunk(info.key, len(info.chunk_digests))
        fields = {name: getattr(info, name) for name in type(info).__slots__}
        with pytest.raises(TransferError):
            hand.trainer.open(type(info)(**{**fields, "total_bytes": 10}))


def test_pins_are_bounded_and_of_the_state_at_hand() -> None:
    with Hand(OPTIONS) as hand:
        records = []
        for round in range(3):
            records.append(step_once(hand, range(round, round + 1)))
            hand.trainer.submit(Pin(0, records[-1], hand.chain))
        assert hand.wait(PinFailed).reason == "2 snapshots are pinned already"
        hand.trainer.submit(Pin(0, records[0], b""))
        assert "round 3" in hand.wait(PinFailed).reason


def test_the_same_snapshot_is_pinned_once() -> None:
    with Hand(OPTIONS) as hand:
        record = step_once(hand, range(1))
        hand.trainer.submit(Pin(0, record, hand.chain))
        first = hand.wait(SnapshotPinned).info
        for _ in range(3):
            hand.trainer.submit(Pin(0, record, hand.chain))
            assert hand.wait(SnapshotPinned).info == first


def test_a_flipped_bit_is_found_within_one_rotation_and_healed() -> None:
    parts = Parts()
    with Hand(OPTIONS, parts=parts) as healthy, Hand(OPTIONS, parts=parts, healthy=healthy.trainer) as damaged:

        def flip(_: object) -> None:
            damaged.stage.exp_avg.view(torch.int32)[damaged.stage.size // 2] ^= 1 << 30

        damaged.trainer.ask(flip).result(30)
        found = None
        for round in range(16):
            tensor, done = healthy.compute((round,))
            record = record_of(parts, round + 1, [(tensor, done.ids)])
            ours, theirs = damaged.apply(record).base, healthy.apply(record).base
            assert ours.chain == theirs.chain
            if ours != theirs:
                found = ours.slice_index
                break
        assert found == 8
        damaged.trainer.submit(HealSlices(0, (found,), ("healthy",)))
        healed = damaged.wait(SlicesHealed)
        assert (healed.healed, healed.reason, healed.base) == ((8,), "", theirs)
        assert damaged.digest() == healthy.digest()


def test_healing_without_the_right_slices_says_so() -> None:
    with Hand(OPTIONS) as ahead, Hand(OPTIONS, healthy=ahead.trainer) as hand:
        step_once(ahead, range(1))
        hand.trainer.submit(HealSlices(0, (3,), ("ahead",)))
        failed = hand.wait(SlicesHealed)
        assert failed.healed == () and "slice 3 of round 0" in failed.reason
