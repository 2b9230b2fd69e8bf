"""What is worked out once is shared by identity, and never outlives its value."""

from __future__ import annotations

from p2ptrain.core.once import Once


def test_the_same_value_is_worked_out_once_an_equal_one_anew() -> None:
    asked: list[tuple[int, ...]] = []

    def total(values: tuple[int, ...]) -> int:
        asked.append(values)
        return sum(values)

    once, one, other = Once(total), tuple([1, 2]), tuple([1, 2])
    assert (once(one), once(one), once(other)) == (3, 3, 3)
    assert len(asked) == 2


def test_only_so_many_results_are_kept() -> None:
    asked: list[object] = []
    once: Once[int] = Once(lambda value: asked.append(value) or len(asked), kept=2)
    values = [object() for _ in range(3)]
    assert [once(value) for value in values] == [1, 2, 3]
    assert once(values[2]) == 3 and once(values[0]) == 4, "the oldest was forgotten"
