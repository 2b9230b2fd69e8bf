"""The options that ``start``, ``join`` and others share: their names, forms and help. Decides nothing else."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

Listen = Annotated[
    str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where others dial us. Default 0.0.0.0:7700.")
]
AnnounceTo = Annotated[
    str | None,
    typer.Option("--announce", metavar="HOST:PORT", help="The address to tell others, if it is another one."),
]
DhtListen = Annotated[
    str | None, typer.Option("--dht-listen", metavar="HOST:PORT", help="Where the DHT listens. Default 0.0.0.0:7701.")
]
RunDir = Annotated[
    Path | None, typer.Option("--run-dir", metavar="DIR", help="The run folder. Default: below P2PTRAIN_HOME.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="Threads for torch. Default: half the cores.")
]
Memory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Take no part if the run needs more, such as 8GiB.")
]
Upload = Annotated[float | None, typer.Option("--upload-mbps", metavar="X", help="Cap on what is uploaded to joiners.")]
Until = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Leave then: 45m, 2h, or 2031-05-01T18:00.")]
OutboundOnly = Annotated[bool, typer.Option("--outbound-only", help="Open no port: only connections that we open.")]
NoDht = Annotated[
    bool, typer.Option("--no-dht", help="Without the DHT: members are known by invite and from each other.")
]
Region = Annotated[str | None, typer.Option("--region", metavar="R", help="A label for where this machine is.")]
Party = Annotated[str | None, typer.Option("--party", metavar="P", help="A label for whose machine this is.")]
Trust = Annotated[
    list[str] | None,
    typer.Option("--trust", metavar="NAME", help="Code or path that the run may use here. Repeatable."),
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")]
MetricsAt = Annotated[
    str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics there. Default: off.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Patience = Annotated[
    float | None,
    typer.Option("--patience", metavar="SECONDS", min=0.0, help="How long to look for a first member. Default 30."),
]
InviteText = Annotated[str, typer.Argument(metavar="INVITE|@FILE", help="An invite, or a file that holds one.")]
ScenarioFile = Annotated[Path, typer.Argument(metavar="FILE", help="A scenario, such as examples/churn/*.toml.")]
Short = Annotated[bool, typer.Option("--short", help="The short form: all times multiplied by the file's `short`.")]


class Times(str, Enum):
    """What expectations on times are for."""

    decide = "decide"
    print = "print"
