"""``p2ptrain lab check`` and ``p2ptrain lab clean``. Decides nothing: ``lab.wan`` measures and cleans."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from p2ptrain.errors import LabError
from p2ptrain.lab.wan import namespaces
from p2ptrain.lab.wan.check import carried_mbps, check_rows
from p2ptrain.lab.wan.opening import SHARE, namespaces_allowed


def check(*, reduced: bool, as_json: bool) -> None:
    """Configured against measured, and the total that can be planned here. Raises LabError: nothing to measure."""
    why = namespaces_allowed()
    if why or reduced:
        raise LabError(
            f"nothing to measure: {why or 'the reduced mode promises no rates'}",
            hint="the check is of network namespaces: run it as root. `p2ptrain lab FILE --reduced` runs without them",
            missing="namespaces",
        )
    console = Console(stderr=as_json, highlight=False)
    table = Table(title="the emulated network on this machine", title_justify="left")
    for column in ("", "configured", "measured", "off", "router late (p99)"):
        table.add_column(column, justify="right" if column else "left")
    rows = []
    for row in check_rows():
        rows.append(row)
        measured, off = f"{row.measured:.4g} {row.unit}", f"{row.off:.1%}" + ("" if row.close else " !")
        table.add_row(row.what, f"{row.configured:g} {row.unit}", measured, off, f"{row.late_p99_s * 1e3:.2f} ms")
    total = carried_mbps()
    table.add_row("in all", "-", f"{total:.0f} Mbit/s", "", "")
    console.print(table)
    plan = SHARE * total
    console.print(f"a scenario may plan {plan:.0f} Mbit/s here ({SHARE:.0%} of that: its peers need the machine too)")
    if as_json:
        values = [
            {"what": row.what, "unit": row.unit, "configured": row.configured, "measured": row.measured, "off": row.off}
            for row in rows
        ]
        print(json.dumps({"rows": values, "carried_mbps": total, "plan_mbps": plan}), flush=True)


def clean() -> None:
    """Say what was removed, a line each."""
    removed = namespaces.clean()
    for line in removed or ["nothing to remove"]:
        print(line, flush=True)
