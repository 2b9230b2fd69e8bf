"""Manifests and the run folder: what is accepted, and for each wrong key an error that names it (G7)."""

from __future__ import annotations

import copy
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from p2ptrain.config import (
    MAX_MANIFEST_BYTES,
    Manifest,
    default_run_dir,
    load_manifest,
    open_run_folder,
    save_manifest,
    write_private,
)
from p2ptrain.config_toml import key_lines, write_toml
from p2ptrain.core.types import Knobs, Policy
from p2ptrain.errors import ConfigError

KNOWN_DIGEST = "55b1f87917cd2bc42671547d8f1ee41d6c4be3a0a46103684fc82fe1e1105d22"

GOOD: dict[str, Any] = {
    "name": "quickstart",
    "commit": "majority",
    "replication": 2,
    "voters_max": 9,
    "rounds": 50,
    "seed": 7,
    "admission": "open",
    "model": {"name": "byte_gpt", "options": {"layers": 4, "width": 128, "scale": 0.5, "tied": True, "kind": "pre"}},
    "data": {"name": "python_stdlib", "options": {}, "fingerprint": "ab" * 32},
    "batch": {"microbatch": 4, "microbatches": 16, "sequence_length": 128},
    "sync": {"mode": "gradient", "codec": "int8", "exact": False},
    "optimiser": {
        "name": "adamw",
        "lr": 3e-3,
        "min_lr": 3e-4,
        "warmup_rounds": 5,
        "total_rounds": 50,
        "schedule": "cosine",
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
    },
    "limits": {"max_peers": 64, "max_parameters": 10_000_000, "max_data_bytes": 1_000_000},
    "evaluate": {"every_rounds": 10, "batches": 4},
}

WRONG: list[tuple[str, Any]] = [
    ("name", "Quick Start"),
    ("name", ""),
    ("name", "a" * 64),
    ("name", "../etc"),
    ("name", 3),
    ("commit", "all"),
    ("replication", 0),
    ("replication", 65),
    ("replication", True),
    ("voters_max", 0),
    ("voters_max", 1),  # below replication
    ("voters_max", 64),
    ("rounds", -1),
    ("rounds", 1.5),
    ("seed", -1),
    ("seed", 2**63),
    ("admission", "closed"),
    ("admission", "secret"),
    ("model", "byte_gpt"),
    ("model.name", ""),
    ("model.name", "x" * 201),
    ("model.options", [1]),
    ("model.options.layers", [4]),
    ("model.options.layers", 2**63),
    ("model.options.scale", float("nan")),
    ("model.options.kind", "x" * 1025),
    ("model.options.Layers", 4),
    ("model.options.context", 127),  # below batch.sequence_length
    ("data.name", 1),
    ("data.options.x", {"y": 1}),
    ("data.fingerprint", "ab"),
    ("data.fingerprint", "AB" * 32),
    ("batch.microbatch", 0),
    ("batch.microbatch", "4"),
    ("batch.microbatches", 0),
    ("batch.microbatches", 65_537),
    ("batch.sequence_length", 0),
    ("batch.sequence_length", 2**20 + 1),
    ("sync.mode", "local"),
    ("sync.mode", "gossip"),
    ("sync.codec", "int4"),
    ("sync.exact", 1),
    ("optimiser.name", "sgd"),
    ("optimiser.lr", 0.0),
    ("optimiser.lr", float("inf")),
    ("optimiser.lr", float("nan")),
    ("optimiser.lr", True),
    ("optimiser.min_lr", -1e-9),
    ("optimiser.min_lr", 4e-3),  # above lr
    ("optimiser.warmup_rounds", -1),
    ("optimiser.warmup_rounds", 50),  # not below total_rounds
    ("optimiser.total_rounds", -1),
    ("optimiser.total_rounds", 0),  # but schedule = cosine
    ("optimiser.schedule", "linear"),
    ("optimiser.beta1", 1.0),
    ("optimiser.beta1", -0.1),
    ("optimiser.beta2", 1.0),
    ("optimiser.eps", 0.0),
    ("optimiser.weight_decay", -0.1),
    ("optimiser.clip_norm", -1.0),
    ("limits.max_peers", 0),
    ("limits.max_peers", 1),  # below replication
    ("limits.max_parameters", 0),
    ("limits.max_data_bytes", -1),
    ("evaluate.every_rounds", -1),
    ("evaluate.batches", 0),
]


def with_value(key: str, value: Any) -> dict[str, Any]:
    values = copy.deepcopy(GOOD)
    *tables, last = key.split(".")
    place = values
    for table in tables:
        place = place[table]
    place[last] = value
    return values


def line_of(text: str, key: str) -> int:
    return key_lines(text)[key]


class TestManifest:
    def test_a_good_one_keeps_every_value(self) -> None:
        assert Manifest.from_toml(write_toml(GOOD)).model_dump() == GOOD

    @pytest.mark.parametrize(("key", "value"), WRONG, ids=lambda value: str(value)[:30])
    def test_each_wrong_value_is_named_with_key_file_and_line(self, key: str, value: Any) -> None:
        text = write_toml(with_value(key, value))
        with pytest.raises(ConfigError) as caught:
            Manifest.from_toml(text, file="run.toml")
        assert caught.value.fields["key"] == key
        assert caught.value.fields["file"] == "run.toml"
        assert str(caught.value).startswith(f"run.toml:{line_of(text, key)}: {key}: ")

    @pytest.mark.parametrize("table", ["", "model", "data", "batch", "sync", "optimiser", "limits", "evaluate"])
    def test_unknown_keys_are_errors_in_every_table(self, table: str) -> None:
        key = f"{table}.zzz" if table else "zzz"
        with pytest.raises(ConfigError, match=r"zzz: unknown key") as caught:
            Manifest.from_toml(write_toml(with_value(key, 1)))
        assert caught.value.fields["key"] == key

    @pytest.mark.parametrize("key", ["name", "model", "data", "batch", "batch.microbatches", "model.name"])
    def test_missing_keys_are_named(self, key: str) -> None:
        values = with_value(key, None)
        *tables, last = key.split(".")
        place = values[tables[0]] if tables else values
        del place[last]
        with pytest.raises(ConfigError, match=f"{key}: is missing") as caught:
            Manifest.from_toml(write_toml(values))
        assert caught.value.fields["key"] == key

    def test_a_near_miss_is_suggested(self) -> None:
        with pytest.raises(ConfigError, match="did you mean 'warmup_rounds'"):
            Manifest.from_toml(write_toml(with_value("optimiser.warmup_round", 1)))

    def test_several_problems_are_all_told(self) -> None:
        values = with_value("batch.microbatch", 0)
        values["optimiser"]["beta1"] = 2.0
        with pytest.raises(ConfigError, match=r"batch\.microbatch.*optimiser\.beta1") as caught:
            Manifest.from_toml(write_toml(values))
        assert len(caught.value.fields["problems"]) == 2  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"name = ", "not TOML"),
            (b"[a]\n[a]\n", "not TOML"),
            (b"\xff\xfe", "not UTF-8"),
            (b"x = " + b"[" * 30_000, "nested too deeply"),
            (b"n = " + b"9" * 5_000, "not TOML"),
            (b"#" * (MAX_MANIFEST_BYTES + 1), "more than the"),
        ],
        ids=["half", "twice", "bytes", "deep", "long", "big"],
    )
    def test_what_is_no_toml_is_refused(self, data: bytes, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            Manifest.from_toml(data)

    def test_a_syntax_error_names_its_line(self) -> None:
        with pytest.raises(ConfigError) as caught:
            Manifest.from_toml('name = "a"\nb ==\nc = 1\n', file="run.toml")
        assert caught.value.fields["line"] == 2

    def test_exact_needs_no_codec_and_refuses_a_lossy_one(self) -> None:
        values = with_value("sync", {"exact": True})
        assert Manifest.from_toml(write_toml(values)).sync.codec == "none"
        for codec in ("fp16", "bf16", "int8"):
            with pytest.raises(ConfigError, match="without loss") as caught:
                Manifest.from_toml(write_toml(with_value("sync", {"exact": True, "codec": codec})))
            assert caught.value.fields["key"] == "sync.codec"

    def test_the_global_batch(self) -> None:
        batch = Manifest.from_toml(write_toml(GOOD)).batch
        assert (batch.sequences, batch.tokens) == (64, 64 * 128)

    def test_it_cannot_be_changed(self) -> None:
        manifest = Manifest.from_toml(write_toml(GOOD))
        with pytest.raises(ValidationError):
            manifest.seed = 8  # type: ignore[misc]
        with pytest.raises(TypeError):
            manifest.model.options["layers"] = 5  # type: ignore[index]


class TestDigest:
    def test_it_is_a_known_value(self) -> None:
        """Fails when a default, a key or the canonical form changes: then old invites name another run."""
        assert Manifest.from_toml(write_toml(GOOD)).run == KNOWN_DIGEST

    def test_order_and_spelling_do_not_matter(self) -> None:
        manifest = Manifest.from_toml(write_toml(GOOD))
        turned = {key: GOOD[key] for key in reversed(GOOD)}
        assert Manifest.from_toml(write_toml(turned)).digest == manifest.digest
        one = write_toml(with_value("optimiser.clip_norm", 1))
        assert Manifest.from_toml(one).digest == manifest.digest

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("name", "other"),
            ("commit", "any"),
            ("seed", 8),
            ("model.options.layers", 5),
            ("model.options.tied", 1),
            ("data.fingerprint", "cd" * 32),
            ("batch.microbatches", 17),
            ("optimiser.eps", 1e-7),
            ("limits.max_peers", 65),
        ],
    )
    def test_every_value_matters(self, key: str, value: Any) -> None:
        assert Manifest.from_toml(write_toml(with_value(key, value))).run != KNOWN_DIGEST

    def test_bytes_and_toml_come_back_equal(self) -> None:
        manifest = Manifest.from_toml(write_toml(GOOD))
        assert Manifest.from_bytes(manifest.to_bytes()) == manifest
        assert Manifest.from_toml(manifest.to_toml()) == manifest
        assert Manifest.from_bytes(manifest.to_bytes()).digest == manifest.digest

    def test_the_fingerprint_is_filled_in(self) -> None:
        manifest = Manifest.from_toml(write_toml(GOOD)).with_fingerprint("cd" * 32)
        assert manifest.data.fingerprint == "cd" * 32
        with pytest.raises(ConfigError, match=r"data\.fingerprint"):
            manifest.with_fingerprint("cd")

    @given(
        options=st.dictionaries(
            st.from_regex(r"\A[a-z][a-z0-9_]{0,63}\Z"),
            st.booleans()
            | st.integers(-(2**63), 2**63 - 1)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
            max_size=8,
        )
    )
    def test_any_options_survive_both_forms(self, options: dict[str, Any]) -> None:
        options.pop("context", None)
        manifest = Manifest.from_bytes(json.dumps(with_value("model.options", options)).encode())
        for again in (Manifest.from_toml(manifest.to_toml()), Manifest.from_bytes(manifest.to_bytes())):
            assert again.digest == manifest.digest
            assert again.model_dump() == manifest.model_dump()


class TestFromBytes:
    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"", "not JSON"),
            (b"[1]", "not a JSON object"),
            (b'{"name":"a","name":"b"}', "given twice"),
            (b'{"seed":NaN}', "NaN"),
            (b"[" * 60_000, "nested too deeply"),
            (b"\xff", "not JSON"),
            (b" " * (MAX_MANIFEST_BYTES + 1), "more than the"),
            (b'{"name":"\\ud800"}', "name"),
            (b'{"seed":' + b"9" * 5_000 + b"}", "not JSON"),
        ],
        ids=["empty", "list", "twice", "nan", "deep", "bytes", "big", "surrogate", "long"],
    )
    def test_malformed_bytes_are_a_config_error(self, data: bytes, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            Manifest.from_bytes(data)

    @given(data=st.binary(max_size=200))
    def test_any_bytes_end_in_a_config_error(self, data: bytes) -> None:
        with pytest.raises(ConfigError):
            Manifest.from_bytes(data)

    @given(position=st.integers(0, 10_000), value=st.integers(0, 255))
    def test_a_changed_byte_is_refused_or_names_another_run(self, position: int, value: int) -> None:
        good = Manifest.from_toml(write_toml(GOOD))
        data = bytearray(good.to_bytes())
        data[position % len(data)] = value
        if bytes(data) == good.to_bytes():
            return
        try:
            changed = Manifest.from_bytes(bytes(data))
        except ConfigError:
            return
        assert changed.digest != good.digest or changed == good


class TestRunSpec:
    def test_one_stage_of_all_layers(self) -> None:
        manifest = Manifest.from_toml(write_toml(GOOD))
        spec = manifest.run_spec(1_000, layers=6, knobs=Knobs(tick_s=0.5))
        assert spec.run == manifest.run
        assert [(s.index, s.first, s.last, s.size) for s in spec.stages] == [(0, 0, 5, 1_000)]
        assert (spec.microbatches, spec.samples_per_microbatch, spec.rounds) == (16, 4, 50)
        assert (spec.policy, spec.exact, spec.replication, spec.voters_max) == (Policy.MAJORITY, False, 2, 9)
        assert spec.knobs.tick_s == 0.5

    @pytest.mark.parametrize("size", [0, 10_000_001])
    def test_a_model_beyond_the_limit_is_refused(self, size: int) -> None:
        with pytest.raises(ConfigError, match="max_parameters"):
            Manifest.from_toml(write_toml(GOOD)).run_spec(size)

    def test_foreign_code_is_listed(self) -> None:
        assert Manifest.from_toml(write_toml(GOOD)).untrusted_names() == ()
        values = with_value("model.name", "my.module:build")
        values["data"]["name"] = "/data/corpus"
        assert Manifest.from_toml(write_toml(values)).untrusted_names() == ("/data/corpus", "my.module:build")


class TestRunFolder:
    def test_it_is_private(self, tmp_path: Path) -> None:
        shared = tmp_path / "run"
        shared.mkdir(mode=0o755)
        folder = open_run_folder(shared)
        for each in (folder.path, folder.keys, folder.data):
            assert stat.S_IMODE(each.stat().st_mode) == 0o700
        write_private(folder.invite, b"secret")
        assert stat.S_IMODE(folder.invite.stat().st_mode) == 0o600
        assert sorted(path.name for path in folder.path.iterdir()) == ["data", "invite", "keys"]

    def test_a_file_in_its_place_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "run").write_text("")
        with pytest.raises(ConfigError, match="run folder") as caught:
            open_run_folder(tmp_path / "run")
        assert caught.value.fields["key"] == "--run-dir"

    def test_a_failed_write_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        (tmp_path / "target").mkdir()
        with pytest.raises(ConfigError, match="cannot be written"):
            write_private(tmp_path / "target", b"x")
        assert [path.name for path in tmp_path.iterdir()] == ["target"]

    def test_it_belongs_to_one_run(self, tmp_path: Path) -> None:
        folder = open_run_folder(tmp_path / "run")
        manifest = Manifest.from_toml(write_toml(GOOD))
        save_manifest(folder, manifest)
        save_manifest(folder, manifest)
        assert load_manifest(folder.manifest) == manifest
        with pytest.raises(ConfigError, match="belongs to run quickstart") as caught:
            save_manifest(folder, manifest.with_fingerprint("00" * 32))
        assert caught.value.fields["key"] == "--run-dir"
        assert load_manifest(folder.manifest) == manifest

    def test_default_place(self) -> None:
        assert default_run_dir(Path("/h"), "quickstart", "ab" * 32) == Path("/h/runs/quickstart-abababab")

    def test_a_missing_manifest_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"run\.toml: cannot be read"):
            load_manifest(tmp_path / "run.toml")
