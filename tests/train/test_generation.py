"""Generated text: that of the model, the same for a seed, and whole characters."""

from __future__ import annotations

import dataclasses
import io
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fp4lab import cli, convert, recipes, set_step
from fp4lab.data import ByteTokenizer, prepare
from fp4lab.data.tokenizer import FileTokenizer, Tokenizer, train_bpe
from fp4lab.errors import InputError, NonFiniteError
from fp4lab.train import LanguageTask, RunConfig, checkpoint, fit, generate, train
from fp4lab.train.generation import _Draws, _Model, _TextStream
from fp4lab.train.tensors import restore_model
from tests.data.texts import words
from tests.train.test_shards_run import on


@pytest.fixture
def run(language_config: RunConfig, tmp_path: Path) -> Path:
    train(language_config, folder=tmp_path / "run")
    return tmp_path / "run"


def text_of(run: Path, prompt: str | bytes, **options: object) -> str:
    return "".join(generate(run, prompt, device="cpu", **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("recipe", [None, "bf16", "mxfp4"])
def test_the_likeliest_tokens_are_those_of_the_model(
    recipe: str | None, run: Path, language_config: RunConfig
) -> None:
    """By hand: a pass over the last 16 tokens for every next one, under the recipe."""
    task = LanguageTask.from_config(language_config)
    model = task.build_model().eval()
    path = checkpoint.available(run / "checkpoints")[-1]
    saved = checkpoint.load(path)
    restore_model(model, saved.tensors["model"], saved.state.tied, source=path)
    convert(model, recipes.get(recipe or "nvfp4"), ragged="pad")
    tokens = list(b"it")
    with torch.no_grad():
        for index in range(30):
            set_step(model, 11, index)
            tokens.append(int(model(torch.tensor([tokens[-16:]]))[0, -1].argmax()))
    found = text_of(run, "it", tokens=30, temperature=0.0, recipe=recipe)
    assert found == bytes(tokens[2:]).decode("utf-8", "replace")
    assert len(found) > 5


def test_one_token_runs_under_every_recipe(language_config: RunConfig, tmp_path: Path) -> None:
    """Blocks of fprop lie along the features; only wgrad's need many tokens."""
    run = tmp_path / "run"
    deep = dataclasses.replace(language_config.model, num_blocks=11)  # some keep the last ten
    train(dataclasses.replace(language_config, model=deep, steps=1), folder=run)
    for name in [*recipes.names(), "nvfp4+2d.fprop", "mxfp6_e2m3"]:
        assert text_of(run, "x", tokens=1, temperature=0.0, recipe=name)


def test_a_seed_decides_the_text(run: Path) -> None:
    first = text_of(run, "the ", tokens=40, seed=1)
    assert text_of(run, "the ", tokens=40, seed=1) == first
    assert text_of(run, "the ", tokens=40, seed=2) != first
    torch.manual_seed(7)
    np.random.seed(7)
    pieces = []
    for piece in generate(run, "the ", tokens=40, seed=1, device="cpu"):
        torch.rand(3)  # what the caller draws between two pieces
        pieces.append(piece)
    assert "".join(pieces) == first
    assert text_of(run, b"the ", tokens=40, seed=1) == first
    assert first.startswith(text_of(run, "the ", tokens=10, seed=1)[:5])


def test_generating_leaves_torch_alone(run: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    text_of(run, "a", tokens=5)
    assert torch.equal(torch.rand(4), expected)


def test_draws_follow_the_probabilities() -> None:
    """20,000 draws; each count is within 5 standard deviations of the binomial."""
    logits = np.array([1.0, 3.0, -1.0, 2.0, -np.inf])
    for temperature, top_k in ((1.0, None), (0.5, 3), (2.0, 2)):
        weights = np.exp(logits / temperature)
        if top_k:
            weights[np.argsort(-logits)[top_k:]] = 0.0
        expected = weights / weights.sum()
        draws = _Draws(temperature, top_k, 5)
        counts = Counter(draws.token(logits) for _ in range(20_000))
        for token, p in enumerate(expected):
            spread = 5 * math.sqrt(20_000 * p * (1 - p))
            assert abs(counts[token] - 20_000 * p) <= spread


def test_draws_at_the_ends() -> None:
    logits = np.array([0.0, 5.0, 5.0, 1.0])
    assert _Draws(0.0, None, 0).token(logits) == 1
    assert {_Draws(1.0, 1, seed).token(logits) for seed in range(20)} == {1}
    assert {_Draws(1e-300, None, seed).token(logits) for seed in range(20)} == {1, 2}
    assert _Draws(1.0, 100, 0).token(np.array([3.0])) == 0

    class Largest:
        def random_raw(self) -> np.uint64:
            return np.uint64(2**64 - 1)

    draws = _Draws(1.0, None, 0)
    draws._numbers = Largest()  # type: ignore[assignment]
    assert draws.token(np.zeros(7)) == 6


@pytest.fixture(scope="module")
def bpe() -> FileTokenizer:
    pytest.importorskip("tokenizers", reason="trains a BPE, which needs the extra data")
    return FileTokenizer(train_bpe([words(0, 2000).encode()], 300), where="made")


@given(st.text(min_size=1), st.text())
def test_pieces_of_a_byte_model_make_the_text(prompt: str, text: str) -> None:
    check_stream(ByteTokenizer(), prompt, text.encode())


@given(st.text(min_size=1), st.text())
def test_pieces_of_a_bpe_make_the_text(bpe: FileTokenizer, prompt: str, text: str) -> None:
    check_stream(bpe, prompt, text.encode())


def check_stream(tokenizer: Tokenizer, prompt: str, text: bytes) -> None:
    given, following = (tokenizer.encode([each])[0].tolist() for each in (prompt.encode(), text))
    stream = _TextStream(tokenizer, given)
    pieces = [stream.push(token) for token in following]
    assert "\ufffd" in text.decode() or not any("\ufffd" in piece for piece in pieces)
    assert "".join([*pieces, stream.end()]) == text.decode()


@given(st.binary(max_size=40))
def test_broken_characters_are_replaced(text: bytes) -> None:
    stream = _TextStream(ByteTokenizer(), list(b"a"))
    pieces = [stream.push(token) for token in text]
    assert "".join([*pieces, stream.end()]) == text.decode("utf-8", "replace")


def test_a_bpe_model_begins_a_document_and_stops_at_its_end(
    language_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers", reason="trains a BPE, which needs the extra data")
    shards = prepare(language_config.data.source, tmp_path / "bpe", tokenizer="bpe", vocab_size=320)
    train(on(language_config, shards.folder), folder=tmp_path / "run")
    shards.folder.rename(tmp_path / "gone")
    run = tmp_path / "run"
    seen: list[list[int]] = []
    end, tokens = 0, iter([65, 66, 67, 0, 68])

    def token(draws: _Draws, logits_V: np.ndarray) -> int:
        assert len(logits_V) == 320
        return next(tokens)

    logits = _Model.logits

    def watch(model: _Model, given: list[int], index: int) -> np.ndarray:
        seen.append(list(given))
        return logits(model, given, index)

    monkeypatch.setattr(_Draws, "token", token)
    monkeypatch.setattr(_Model, "logits", watch)
    found = text_of(run, "", tokens=10)
    assert seen == [[end], [end, 65], [end, 65, 66], [end, 65, 66, 67]]
    assert found == FileTokenizer.read(run / "tokenizer.json").decode([65, 66, 67])


def test_tokens_beyond_the_tokenizer_are_never_drawn(
    language_config: RunConfig, tmp_path: Path
) -> None:
    wide = dataclasses.replace(language_config.model, vocab_size=5000)
    config = dataclasses.replace(language_config, model=wide, steps=1, recipe="bf16")
    train(config, folder=tmp_path / "run")
    assert text_of(tmp_path / "run", "a", tokens=100, temperature=100.0)


def test_logits_that_are_not_finite_are_an_error(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fp4lab.models import GPT

    monkeypatch.setattr(GPT, "forward", lambda self, x: torch.full((1, x.shape[1], 256), torch.nan))
    with pytest.raises(
        NonFiniteError, match="the logits of token 1 hold a NaN or an infinity; try"
    ):
        text_of(run, "a")


def test_bad_input_is_one_line(run: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_bytes(b"x")
    (tmp_path / "other" / "config.json").write_text("{}")
    newest = checkpoint.available(run / "checkpoints")[-1]
    cases: list[tuple[list[str], str]] = [
        (["/absent"], "checkpoint=/absent does not exist"),
        ([str(run / "config.toml")], "config.toml is no folder; give a run's folder"),
        ([str(tmp_path / "other")], "other holds no checkpoint; give the folder of a run"),
        ([str(run)], "prompt is empty; give at least one character to begin with"),
        ([str(run), "--prompt", "a", "--tokens", "0"], "tokens=0 should be an integer from 1"),
        ([str(run), "--prompt", "a", "--temperature", "-1"], "temperature=-1.0 is not a number"),
        ([str(run), "--prompt", "a", "--temperature", "nan"], "temperature=nan is not a number"),
        ([str(run), "--prompt", "a", "--top-k", "0"], "--top-k=0 should be an integer from 1"),
        ([str(run), "--prompt", "a", "--seed", "-1"], "seed=-1 should be an integer from 0"),
        ([str(run), "--prompt", "a", "--recipe", "nvpf4"], "did you mean 'nvfp4'?"),
    ]
    for arguments, message in cases:
        assert message in refused("generate", *arguments, "--device", "cpu")
    tensors = newest / "model.safetensors"
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-5])
    for command in (["generate", str(run), "--prompt", "a"], ["eval", str(run)]):
        assert "model.safetensors has" in refused(*command)
    tensors.write_bytes(whole)
    (run / "config.toml").rename(run / "gone.toml")
    for command in (["generate", str(run), "--prompt", "a"], ["eval", str(run)]):
        assert "config.toml is missing; a checkpoint is used in its" in refused(*command)


def test_a_run_of_a_users_own_module_has_no_text(
    small_task: type, fit_config: object, tmp_path: Path
) -> None:
    fit(small_task(), recipe=None, config=fit_config, folder=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="holds a module of your own, not a language model"):
        text_of(tmp_path, "a")


def test_the_command_prints_the_prompt_and_what_follows(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["generate", str(run), "--tokens", "20", "--device", "cpu"]
    expected = text_of(run, "caf\u00e9", tokens=20)
    assert cli.main([*arguments, "--prompt", "caf\u00e9"]) == 0
    assert capsys.readouterr().out == f"caf\u00e9{expected}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xc3\xa9")))
    assert cli.main([*arguments, "--prompt", "-"]) == 0
    assert capsys.readouterr().out == f"caf\u00e9{expected}\n"
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.main([*arguments, "--prompt", "-"]) == 2
    assert "prompt is empty; give at least one character" in capsys.readouterr().err
    broken = b"caf\xc3".decode("utf-8", "surrogateescape")
    assert cli.main([*arguments, "--prompt", broken]) == 0
    assert capsys.readouterr().out.startswith("caf\ufffd")


@pytest.mark.gpu
def test_on_a_gpu(language_config: RunConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(language_config, device="cuda")
    train(config, folder=tmp_path / "run")
    first = "".join(generate(tmp_path / "run", "the ", tokens=40, device="cuda"))
    assert "".join(generate(tmp_path / "run", "the ", tokens=40, device="cuda")) == first
