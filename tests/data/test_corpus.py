from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.data import Corpus, CorpusAssembly, CorpusInfo, corpus_by_name, dataset_names
from p2ptrain.data import corpus as corpus_module
from p2ptrain.data.sources import python_stdlib
from p2ptrain.errors import ConfigError, TransferError


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_BYTES", 100)


def corpus() -> Corpus:
    return Corpus.of(bytes(range(256)) * 4, b"held out" * 20)


def pull(source: Corpus, info: CorpusInfo | None = None) -> CorpusAssembly:
    return CorpusAssembly(info or source.info(), source.fingerprint, 1 << 20)


def test_a_corpus_survives_the_way_through_chunks() -> None:
    one = corpus()
    arriving = pull(one)
    for index in reversed(list(arriving.missing())):
        assert arriving.write(index, one.chunk(index))
    other = arriving.finish()
    assert (bytes(other.train), bytes(other.validation)) == (bytes(range(256)) * 4, b"held out" * 20)
    assert other.fingerprint == one.fingerprint and len(one.fingerprint) == 64


def test_wrong_chunks_are_not_written() -> None:
    one = corpus()
    arriving = pull(one)
    good = one.chunk(3)
    for index, data in [(3, good[:-1] + b"?"), (3, good[:-1]), (3, b""), (2, good), (-1, good), (10**6, good)]:
        assert not arriving.write(index, data)
    with pytest.raises(TransferError, match="13 of 13"):
        arriving.finish()
    with pytest.raises(KeyError):
        one.chunk(13)


def test_an_offer_that_is_not_the_manifests_corpus_is_refused() -> None:
    one = corpus()
    info = one.info()
    offers = [
        Corpus.of(b"x" * 1024, b"held out" * 20).info(),
        CorpusInfo(1 << 60, info.chunk_bytes, info.chunk_digests, info.fingerprint),
        CorpusInfo(info.total_bytes, 0, info.chunk_digests, info.fingerprint),
        CorpusInfo(info.total_bytes, -5, info.chunk_digests, info.fingerprint),
        CorpusInfo(info.total_bytes, info.chunk_bytes, info.chunk_digests[:-1], info.fingerprint),
        CorpusInfo(info.total_bytes, info.chunk_bytes, (b"x" * 32, *info.chunk_digests[1:]), info.fingerprint),
    ]
    for offer in offers:
        with pytest.raises(TransferError, match="not the run's"):
            pull(one, offer)
    with pytest.raises(ConfigError, match="your limit"):
        CorpusAssembly(info, one.fingerprint, 1000)


@given(st.binary(max_size=64))
def test_bytes_that_are_no_corpus_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError):
        Corpus(data)
    blob = bytearray(corpus().blob)
    with pytest.raises(ConfigError):
        Corpus(blob + data + b"x")


def test_saved_and_loaded_again(tmp_path: Path) -> None:
    one = corpus()
    path = tmp_path / "corpus"
    one.save(path)
    assert Corpus.load(path, one.fingerprint).fingerprint == one.fingerprint
    with pytest.raises(ConfigError, match="is not the run's corpus"):
        Corpus.load(path, "0" * 64)
    with pytest.raises(ConfigError, match="No such file"):
        Corpus.load(tmp_path / "none", one.fingerprint)


# --- sources


def library(folder: Path) -> Path:
    for index in range(60):
        (folder / f"module_{index:02}.py").write_bytes(b"value = %d\r\n" % index * 20)
    for name in ("test/test_x.py", "site-packages/other.py", "_sysconfigdata_x.py", "notes.txt", "lib/deep.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"marker {name}\n")
    return folder


def test_stdlib_takes_source_files_only_and_splits_by_file(tmp_path: Path) -> None:
    made = python_stdlib(folder=str(library(tmp_path)), validation_fraction=0.3)
    text = bytes(made.train) + bytes(made.validation)
    assert b"\r" not in text
    assert b"marker lib/deep.py" in text
    for name in (b"test_x", b"other.py", b"_sysconfigdata", b"notes"):
        assert name not in text
    for index in range(60):
        line = b"value = %d\n" % index
        assert (line in bytes(made.train)) != (line in bytes(made.validation))


def test_stdlib_is_a_function_of_files_and_options(tmp_path: Path) -> None:
    folder = str(library(tmp_path))
    one = python_stdlib(folder=folder)
    assert python_stdlib(folder=folder).fingerprint == one.fingerprint
    assert python_stdlib(folder=folder, seed=1).fingerprint != one.fingerprint
    (tmp_path / "module_07.py").write_text("another release\n")
    assert python_stdlib(folder=folder).fingerprint != one.fingerprint


def test_stdlib_is_bounded(tmp_path: Path) -> None:
    folder = str(library(tmp_path))
    made = python_stdlib(folder=folder, max_bytes=4000, validation_fraction=0.3)
    assert 2000 < len(made.train) + len(made.validation) <= 4000


def test_stdlib_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too few"):
        python_stdlib(folder=str(tmp_path))
    for options in ({"max_bytes": 5}, {"max_bytes": "8"}, {"validation_fraction": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            corpus_by_name("python_stdlib", **options)


def test_the_real_library_is_found() -> None:
    made = corpus_by_name("python_stdlib", max_bytes=1 << 20)
    assert len(made.train) > 700_000 and len(made.validation) > 10_000
    assert b"import" in bytes(made.train)


def test_token_files_need_trust(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(bytes(range(200)))
    name = str(path)
    with pytest.raises(ConfigError, match="--trust"):
        corpus_by_name("token_file", path=name)
    made = corpus_by_name("token_file", path=name, trusted={name}, validation_fraction=0.1)
    assert bytes(made.train) == bytes(range(180)) and bytes(made.validation) == bytes(range(180, 200))
    wide = corpus_by_name("token_file", path=name, trusted={name}, validation_fraction=0.1, item_bytes=2)
    assert (len(wide.train), len(wide.validation), wide.item_bytes) == (180, 20, 2)
    path.write_bytes(b"abc")
    with pytest.raises(ConfigError, match="no whole"):
        corpus_by_name("token_file", path=name, trusted={name}, item_bytes=2)
    with pytest.raises(ConfigError, match="No such file"):
        corpus_by_name("token_file", path="/no/where", trusted={"/no/where"})


def test_names_and_options_are_checked() -> None:
    assert dataset_names() == ("python_stdlib", "token_file")
    for name, options, key in [
        ("wikipedia", {}, "name"),
        ("python_stdlib", {"folder": "/"}, "folder"),
        ("token_file", {}, "path"),
    ]:
        with pytest.raises(ConfigError) as caught:
            corpus_by_name(name, **options)
        assert caught.value.fields["key"] == key
