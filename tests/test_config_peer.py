"""One peer's options and environment: what is accepted, and for each wrong one an error that names it (G7)."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.config import (
    HostPort,
    PeerSettings,
    parse_duration,
    parse_host_port,
    parse_memory,
    parse_until,
    read_environment,
)
from p2ptrain.errors import ConfigError

NOW_S = datetime(2030, 1, 1, 12, 0, tzinfo=timezone.utc).timestamp()


class TestParsers:
    @pytest.mark.parametrize(
        ("text", "size"),
        [("8GiB", 8 * 2**30), ("512 MiB", 2**29), ("16GB", 16 * 10**9), ("1.5gib", 3 * 2**29), ("100B", 100)],
    )
    def test_memory(self, text: str, size: int) -> None:
        assert parse_memory(text) == size

    @pytest.mark.parametrize("text", ["", "8", "GiB", "-1GiB", "8 gigs", "1e3MB", "0GiB", "nanGiB", "8GiB8GiB"])
    def test_wrong_memory_names_the_flag(self, text: str) -> None:
        with pytest.raises(ConfigError, match="--memory") as caught:
            parse_memory(text)
        assert caught.value.fields["key"] == "--memory"

    @pytest.mark.parametrize(
        ("text", "duration_s"),
        [("90s", 90), ("45m", 2700), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("0.5h", 1800)],
    )
    def test_duration(self, text: str, duration_s: float) -> None:
        assert parse_duration(text) == duration_s

    @pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2 h", "0s", "2hours", "1h-30m"])
    def test_wrong_duration_names_the_flag(self, text: str) -> None:
        with pytest.raises(ConfigError, match="--until"):
            parse_duration(text)

    @pytest.mark.parametrize(
        ("text", "after_s"),
        [
            ("2h", 7200),
            ("2030-01-01T13:00:00Z", 3600),
            ("2030-01-01T14:00+01:00", 3600),
            ("2030-01-01 12:00:30+00:00", 30),
        ],
    )
    def test_until(self, text: str, after_s: float) -> None:
        assert parse_until(text, NOW_S) == NOW_S + after_s

    @pytest.mark.parametrize(
        "text", ["", "soon", "2030-01-01T11:00:00Z", "2030-13-01", "2030-01-01T25:00", "2030-01-01Tnoon", "12:30"]
    )
    def test_wrong_until_names_the_flag(self, text: str) -> None:
        with pytest.raises(ConfigError, match="--until"):
            parse_until(text, NOW_S)

    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            ("0.0.0.0:7700", "0.0.0.0", 7700),
            ("peer.Example.org:1", "peer.example.org", 1),
            ("[::1]:7700", "::1", 7700),
            ("localhost:0", "localhost", 0),
        ],
    )
    def test_host_port_and_back(self, text: str, host: str, port: int) -> None:
        parsed = parse_host_port(text, "--listen")
        assert parsed == HostPort(host, port)
        assert parse_host_port(str(parsed), "--listen") == parsed

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "7700",
            ":7700",
            "host:",
            "host:70000",
            "host:-1",
            "::1:7700",
            "[::1]",
            "256.0.0.1:1",
            "1.2.3:1",
            "a b:1",
            "-a:1",
            "a..b:1",
            "[::zz]:1",
            "host:77:00",
            "http://host:1",
            "x" * 300 + ":1",
        ],
    )
    def test_wrong_host_port_names_the_flag(self, text: str) -> None:
        with pytest.raises(ConfigError, match="--announce") as caught:
            parse_host_port(text, "--announce")
        assert caught.value.fields["key"] == "--announce"


class TestPeerSettings:
    def test_defaults(self) -> None:
        settings = PeerSettings.from_flags(now_s=NOW_S)
        assert (str(settings.listen), str(settings.dht_listen)) == ("0.0.0.0:7700", "0.0.0.0:7701")
        assert (settings.announce, settings.run_dir, settings.until_s, settings.trust) == (None, None, None, ())

    def test_all_given(self, tmp_path: Path) -> None:
        settings = PeerSettings.from_flags(
            now_s=NOW_S,
            threads=2,
            memory="8GiB",
            upload_mbps=50,
            listen="0.0.0.0:1",
            announce="peer.example.org:1",
            dht_listen="0.0.0.0:2",
            region="eu-west",
            party="institute-a",
            run_dir=tmp_path,
            until="2h",
            trust=["my.module:build"],
            log_json=True,
        )
        assert (settings.threads, settings.memory_bytes, settings.upload_mbps) == (2, 8 * 2**30, 50.0)
        assert settings.announce == HostPort("peer.example.org", 1)
        assert (settings.region, settings.party, settings.until_s) == ("eu-west", "institute-a", NOW_S + 7200)
        assert (settings.run_dir, settings.trust, settings.log_json) == (tmp_path, ("my.module:build",), True)

    @pytest.mark.parametrize(
        ("flags", "flag"),
        [
            ({"threads": 0}, "--threads"),
            ({"threads": 5_000}, "--threads"),
            ({"memory": "much"}, "--memory"),
            ({"upload_mbps": 0}, "--upload-mbps"),
            ({"upload_mbps": float("nan")}, "--upload-mbps"),
            ({"upload_mbps": 1e9}, "--upload-mbps"),
            ({"listen": "7700"}, "--listen"),
            ({"announce": "0.0.0.0:7700"}, "--announce"),
            ({"announce": "[::]:7700"}, "--announce"),
            ({"announce": "host:0"}, "--announce"),
            ({"dht_listen": "x"}, "--dht-listen"),
            ({"listen": "0.0.0.0:9", "dht_listen": "0.0.0.0:9"}, "--dht-listen"),
            ({"outbound_only": True, "listen": "0.0.0.0:9"}, "--listen"),
            ({"outbound_only": True, "announce": "host:9"}, "--announce"),
            ({"no_dht": True, "dht_listen": "0.0.0.0:9"}, "--dht-listen"),
            ({"region": "Europe West"}, "--region"),
            ({"party": "x" * 64}, "--party"),
            ({"until": "yesterday"}, "--until"),
        ],
        ids=str,
    )
    def test_each_wrong_flag_is_named(self, flags: dict[str, Any], flag: str) -> None:
        with pytest.raises(ConfigError) as caught:
            PeerSettings.from_flags(now_s=NOW_S, **flags)
        assert caught.value.fields["key"] == flag
        assert flag in str(caught.value)


class TestEnvironment:
    def test_home(self, tmp_path: Path) -> None:
        assert read_environment({"HOME": "/home/a"}).home == Path("/home/a/.local/share/p2ptrain")
        assert read_environment({"HOME": "/home/a", "XDG_DATA_HOME": "/data"}).home == Path("/data/p2ptrain")
        assert read_environment({"HOME": "/home/a", "XDG_DATA_HOME": "data"}).home.parts[1] == "home"
        assert read_environment({"P2PTRAIN_HOME": str(tmp_path), "XDG_DATA_HOME": "/data"}).home == tmp_path

    def test_a_flag_wins(self) -> None:
        around = read_environment({"P2PTRAIN_REGION": "eu", "P2PTRAIN_PARTY": "a", "P2PTRAIN_LOG_JSON": "1"})
        settings = PeerSettings.from_flags(now_s=NOW_S, environment=around, region="us")
        assert (settings.region, settings.party, settings.log_json) == ("us", "a", True)

    @pytest.mark.parametrize(
        ("name", "value"), [("P2PTRAIN_LOG_JSON", "maybe"), ("P2PTRAIN_REGION", "A B"), ("P2PTRAIN_PARTY", "x" * 64)]
    )
    def test_a_wrong_variable_is_named(self, name: str, value: str) -> None:
        with pytest.raises(ConfigError, match=name):
            read_environment({name: value})

    def test_foreign_variables_are_ignored(self) -> None:
        read_environment({"P2PTRAIN_SERVICE_PORT": "tcp://10.0.0.1:7700"})  # Kubernetes sets such
