"""A seeded permutation of range(n) that needs no table: any peer finds the place of any sample by itself.

A Feistel network over the smallest even number of bits that holds n, walked along its cycle until the value is below n
(Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): a bijection for every key and every n. The
walk takes fewer than four steps on average. Standard library only; the same on every platform.
"""

from __future__ import annotations

import hashlib

ROUNDS = 4


class Permutation:
    def __init__(self, size: int, seed: int, epoch: int) -> None:
        """A permutation of range(``size``), another one for each (seed, epoch)."""
        if size < 1:
            raise ValueError("a permutation needs at least one element")
        self.size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half_bits) - 1
        self._key = hashlib.blake2b(f"p2ptrain shuffle 1/{seed}/{epoch}".encode(), digest_size=32).digest()

    def __call__(self, position: int) -> int:
        """Raises IndexError outside range(size)."""
        if not 0 <= position < self.size:
            raise IndexError(f"{position} is not below {self.size}")
        value = self._encrypt(position)
        while value >= self.size:
            value = self._encrypt(value)
        return value

    def _encrypt(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._mask
        for step in range(ROUNDS):
            message = bytes([step]) + right.to_bytes(8, "big")
            drawn = int.from_bytes(hashlib.blake2b(message, key=self._key, digest_size=8).digest(), "big")
            left, right = right, left ^ (drawn & self._mask)
        return (left << self._half_bits) | right
