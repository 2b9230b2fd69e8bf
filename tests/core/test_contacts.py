"""The table of contacts keeps note of who has something due, however that comes about."""

from __future__ import annotations

import math

from p2ptrain.core.contacts import Contact, Contacts, Suspicion


def test_whoever_waits_for_something_is_restless_and_nobody_else() -> None:
    table = Contacts()
    quiet, dialled = table.put("a", Contact(linked=True)), table.ensure("b")
    assert not table.restless and table.linked() == ["a"]
    dialled.dialling_until = 3.0
    quiet.suspicion = Suspicion(1.0, "silent", 1.0)
    assert set(table.restless) == {"a", "b"} and table.suspected() == ["a"]
    dialled.dialling_until = math.inf
    quiet.suspicion = None
    assert not table.restless and dialled.idle and not quiet.idle


def test_what_is_put_or_taken_out_counts_at_once() -> None:
    table = Contacts()
    table.put("a", Contact(redial_at=2.0))
    assert set(table.restless) == {"a"}
    old = table.pop("a")
    assert old is not None and not table.restless
    old.redial_at = 5.0
    assert not table.restless, "a contact taken out tells the table nothing more"
    table.put("a", Contact(redial_at=2.0))
    table.put("a", Contact(linked=True))
    assert not table.restless and table.pop("b") is None
