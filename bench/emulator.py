"""The lab's emulated WAN: configured against measured, for one pair and for 16 peers in 4 regions.

    python bench/emulator.py --json [--quick]

``ratio``: 10% over how far the measured value is off (above 1: within 10%). Loss is a chance: its row also tells the
spread (two standard errors) of so many packets. Wants two idle cores and root.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from common import Results

from p2ptrain.lab.wan import Host, Place, Shape
from p2ptrain.lab.wan.check import CLOSE, carried_mbps, check_rows
from p2ptrain.lab.wan.emulated import NamespaceWan
from p2ptrain.lab.wan.opening import namespaces_allowed
from p2ptrain.lab.wan.probing import delay_s, rates_mbps

REGIONS = 4
PEERS = 16
TOTAL_MBPS = 320.0
WITHIN = "within 10%"


def one_pair(results: Results, quick: bool) -> None:
    delays = (5.0, 150.0) if quick else (5.0, 10.0, 20.0, 50.0, 100.0, 150.0)
    rates = (10.0, 200.0) if quick else (10.0, 20.0, 50.0, 100.0, 200.0)
    for row in check_rows(delays, rates, (), rate_seconds=1.0 if quick else 4.0):
        told(results, f"one pair: {row.what} {row.configured:g} {row.unit}", row.measured, row.unit, row.off,
             router_late_p99_ms=row.late_p99_s * 1e3)  # fmt: skip
    for loss in (0.02,) if quick else (0.001, 0.005, 0.02):
        packets = 30_000 if quick else int(1_000 / loss)
        for row in check_rows((), (), (loss,), loss_packets=packets):
            told(results, f"one pair: loss {loss:.1%}", row.measured, "%", row.off, packets=packets,
                 spread=2 * ((1 - loss) / (loss * packets)) ** 0.5)  # fmt: skip


def four_regions(results: Results, seconds: float) -> None:
    """Eight connections at once, each to another region, 2 x 4 delays; then the delays between regions."""
    hosts = [Host(f"h{i}") for i in range(PEERS)]
    each = TOTAL_MBPS / (PEERS // 2)
    wan = NamespaceWan(hosts, seed=1)
    try:
        for i in range(PEERS):
            for j in range(PEERS):
                if i != j:
                    wan.shape(f"h{i}", f"h{j}", Shape(region_delay_s(i, j), mbps=each))
        places = [wan.place(host.name) for host in hosts]
        for one, other in ((0, 1), (0, 2), (0, 3)):
            asked, measured = region_delay_s(one, other) * 1e3, delay_s(places[one], places[other]) * 1e3
            told(results, f"16 peers: delay {asked:g} ms", measured, "ms", abs(measured - asked) / asked)
        wan.measured(anew=True)
        pairs: Sequence[tuple[Place, Place]] = [(places[i], places[PEERS - 1 - i]) for i in range(PEERS // 2)]
        measured_each = rates_mbps(pairs, seconds, skip_s=2.0)
        worst = max(measured_each, key=lambda rate: abs(rate - each))
        late = wan.lateness_p99_s() * 1e3
        told(results, f"16 peers: worst of 8 rates of {each:g} Mbit/s", worst, "Mbit/s", abs(worst - each) / each)
        total = sum(measured_each)
        results.add("16 peers: in all", total, "Mbit/s", "300 Mbit/s", total / 300, target="at least 300",
                    met=total >= 300, router_late_p99_ms=late, configured=TOTAL_MBPS)  # fmt: skip
    finally:
        wan.close()


def region_delay_s(one: int, other: int) -> float:
    """5 ms within a region; 10, 35 and 75 ms between two that are one, two or three apart."""
    return (0.005, 0.010, 0.035, 0.075)[abs(one % REGIONS - other % REGIONS)]


def told(results: Results, case: str, measured: float, unit: str, off: float, **more: float) -> None:
    ratio = CLOSE / max(off, 1e-4)
    results.add(case, measured, unit, "as configured", ratio, target=WITHIN, met=off <= CLOSE, off=off, **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    results = Results("emulator", args.json)
    why = namespaces_allowed()
    if why:
        results.add(f"not measured here: {why}", None, "", target=WITHIN, met=False)
        results.table()
        return
    one_pair(results, args.quick)
    four_regions(results, 2.0 if args.quick else 6.0)
    total = carried_mbps(seconds=2.0)
    results.add("nothing rated: carried in all", total, "Mbit/s", "300 Mbit/s", total / 300)
    results.table()


if __name__ == "__main__":
    main()
