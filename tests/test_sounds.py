"""Classifiers of sounds: all engines and a decomposition in NumPy; how sounds are read, and what is shown of them."""

from __future__ import annotations

import json
import pickle
import wave

import numpy as np
import pytest
import sound_models
import torch
from click.testing import CliRunner
from exactness import ROUNDING, engines_agree, is_decomposition, item_for, with_rules
from refusals import refuses
from sound_models import CASES, classifier, inputs
from torch import nn
from transformers import ASTFeatureExtractor, Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

from decompx_fast import DecompX, Explanation, Failure
from decompx_fast.cli import cli, main
from decompx_fast.errors import OptionError, UnsupportedModelError
from decompx_fast.linearize.families import SOUNDS
from decompx_fast.linearize.linearization import linearize


def own_logits(model: nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model(**given).logits


def test_every_family_has_a_case():
    assert {name for name, _ in CASES.values()} == set(SOUNDS)


@pytest.mark.parametrize(("case", "rule"), with_rules(CASES))
def test_engines_and_a_second_decomposition_agree(case, rule):
    model, given = classifier(case), inputs(case)
    expected = engines_agree(model, given, rule)
    size = expected.abs().max().item()
    values = next(iter(given.values()))
    item = item_for(rule)
    scores, logits = sound_models.decompose(model, values[item : item + 1], rule)
    is_decomposition(scores, expected[item], rule, size)
    assert np.abs(logits - own_logits(model, given)[item].numpy()).max() <= ROUNDING * size


@pytest.mark.parametrize("case", CASES)
def test_a_replaced_module_is_refused(case):
    model = classifier(case)
    names = [name for name, part in model.named_modules() if isinstance(part, (nn.Linear, nn.LayerNorm, nn.Conv1d))]
    # What makes the frames comes before the sources; WavLM's maps are not called as modules.
    names = [name for name in names if ".layers." in name or "pos_conv" in name or "classifier" in name]
    names = [name for name in names if not (case.startswith("wavlm") and "attention" in name)]
    for name in names[::3]:
        handle = model.get_submodule(name).register_forward_hook(lambda _m, _a, output: output * 1.01)
        try:
            with pytest.raises(UnsupportedModelError):
                linearization = linearize(model, inputs(case))
                *_, last = linearization.layers()
                linearization.head(last.output)
        finally:
            handle.remove()


def test_what_tells_of_the_last_layer_is_refused_where_all_are_read():
    explainer = DecompX(classifier("whisper_all_layers"))
    with pytest.raises(OptionError, match="sum over all layers"):
        explainer(inputs("whisper", 1), aggregation="rollout", head=False, engine="reference")


def test_rows_are_kept_where_all_layers_are_read():
    explainer, given = DecompX(classifier("whisper_all_layers")), inputs("whisper", 1)
    found = explainer(given, positions=[2, 5], sources=(1, 3))[0]
    assert found.completeness_error < ROUNDING and found.stages["rows"].shape[0] == 2
    assert torch.allclose(found.scores, explainer(given, sources=(1, 3), engine="reference")[0].scores, atol=1e-10)
    assert explainer(given, check="thorough")[0].score_error < ROUNDING


def test_what_is_not_exact_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="adapter_attn_dim"):
        DecompX(classifier("wav2vec2_stable", adapter_attn_dim=4))(inputs("wav2vec2_stable"))
    with pytest.raises(UnsupportedModelError, match="conv_pos_batch_norm"):
        DecompX(classifier("hubert", conv_pos_batch_norm=True))(inputs("hubert"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["ast", "wav2vec2", "wavlm", "whisper"])
def test_other_dtypes(case, dtype):
    expected = DecompX(classifier(case))(inputs(case, 1))[0].scores
    found = DecompX(classifier(case, dtype=dtype))(inputs(case, 1))[0].scores
    # Of each number 24 or 8 bits are kept, and random weights of this size magnify that by a hundred.
    assert (found - expected).abs().max() <= 200 * torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("case", ["wavlm", "wav2vec2_all_layers", "whisper_all_layers"])
def test_weights_that_were_trained_meanwhile_are_seen(case):
    """Some of what is read of these models is made of their weights: it must not be what it was before."""
    model, given = classifier(case), inputs(case, 1)
    explainer = DecompX(model)
    explainer(given)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    found = explainer(given)[0]
    assert torch.allclose(found.scores.sum(0), own_logits(model, given)[0], rtol=0, atol=ROUNDING)


def test_the_users_model_is_left_as_it_was():
    """A sum over layers makes transformers put hooks on what it runs."""
    model = classifier("whisper_all_layers").train()
    DecompX(model)(inputs("whisper", 1))
    assert model.training and not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


# How sounds are read.


def tone(samples: int = 66) -> np.ndarray:
    return np.sin(np.arange(samples) * 0.3).astype(np.float32)


@pytest.fixture(scope="module")
def explainer() -> DecompX:
    return DecompX(classifier("wav2vec2"), Wav2Vec2FeatureExtractor(sampling_rate=100))


def written(path, samples: np.ndarray, *, channels: int = 1, width: int = 2, rate: int = 100) -> str:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype(np.int64)
        whole = whole + 128 if width == 1 else whole
        file.writeframes(b"".join(int(n).to_bytes(width, "little", signed=width > 1) for n in whole))
    return str(path)


def test_a_sound_is_read_in_every_form(explainer, tmp_path):
    expected = explainer(Wav2Vec2FeatureExtractor(sampling_rate=100)(tone(), sampling_rate=100, return_tensors="pt"))[0]
    forms = [tone(), torch.from_numpy(tone()), tone().tolist(), {"array": tone(), "sampling_rate": 100}]
    for form in forms:
        assert torch.allclose(explainer(form).scores, expected.scores, rtol=0, atol=1e-12)
    extractor = Wav2Vec2FeatureExtractor(sampling_rate=100, return_attention_mask=True)
    masked = extractor(tone(), sampling_rate=100, return_tensors="pt")
    assert "attention_mask" in masked and torch.equal(explainer(masked)[0].scores, expected.scores)
    whole = np.round(tone() * 32767).astype(np.int16)
    for width in (1, 2, 3, 4):
        path = written(tmp_path / f"{width}.wav", tone(), width=width)
        found = explainer(path)
        assert (found.scores - expected.scores).abs().max() <= 5 * 2.0 ** (
            -8 * width + 1
        ) * expected.scores.abs().max() + 1e-5
        assert found.metadata["seconds"] == 0.66
    assert torch.allclose(explainer(written(tmp_path / "a.wav", tone())).scores, explainer(whole).scores, atol=1e-6)
    stereo = written(tmp_path / "stereo.wav", np.stack([tone(), tone()], 1).flatten(), channels=2)
    assert "2, of which the mean" in explainer(stereo).metadata["channels"]
    several = explainer([tone(), stereo, tone(50)])
    assert [len(one) for one in several] == [15, 15, 11] and several[2].completeness_error < ROUNDING


def test_sounds_of_other_lengths_with_as_many_frames_go_together(explainer):
    assert len(explainer(tone(66))) == len(explainer(tone(67)))
    together = explainer([tone(66), tone(67)])
    for one, samples in zip(together, (66, 67), strict=True):
        assert torch.allclose(one.scores, explainer(tone(samples)).scores, rtol=0, atol=1e-12)


def test_frames_are_named_by_their_time_and_add_up(explainer):
    found = explainer(tone())
    assert found.tokens[:2] == ("0.00-0.04 s", "0.04-0.08 s") and found.source_unit == "frame"
    assert found.task == "audio-classification" and found.picture.grid == (1, 15)
    values = Wav2Vec2FeatureExtractor(sampling_rate=100)(tone(), sampling_rate=100, return_tensors="pt")
    logits = own_logits(explainer.model, {"input_values": values["input_values"].double()})[0]
    assert torch.allclose(found.scores.sum(0), logits, rtol=0, atol=1e-12)
    spans = explainer(tone(), sources=0.2, bias="none")
    each = explainer(tone(), bias="none").scores
    assert spans.tokens == ("0.00-0.20 s", "0.20-0.40 s", "0.40-0.60 s")
    assert torch.allclose(spans.scores[1], each[5:10].sum(0), rtol=0, atol=1e-12)


def test_a_spectrogram_has_its_lowest_frequencies_at_the_bottom():
    extractor = ASTFeatureExtractor(num_mel_bins=10, max_length=16, sampling_rate=1600)
    explainer = DecompX(classifier("ast"), extractor)
    found = explainer(tone(2000), bias="none")
    assert found.tokens[:3] == ("[CLS]", "[DIST]", "0.00-0.03 s, mel 0") and found.source_unit == "patch"
    assert found.picture.grid == (3, 5) and tuple(found.picture.pixels.shape) == (9, 15, 3)
    column = found.column()
    assert torch.equal(found.patches()[2], found.scores[2:7, column])
    blocks = explainer(tone(2000), sources=(3, 1), bias="none")
    for row in range(3):
        assert torch.allclose(blocks.scores[2 + row], found.scores[2 + 5 * (2 - row) :][:5].sum(0), rtol=0, atol=1e-12)


def test_whisper_reads_its_processors_spectrogram():
    extractor = WhisperFeatureExtractor(feature_size=10, sampling_rate=1800, chunk_length=1, hop_length=100, n_fft=200)
    found = DecompX(classifier("whisper"), extractor)(tone(900))
    assert found.completeness_error < ROUNDING and found.picture.grid == (1, 9)
    assert found.tokens[1] == "0.11-0.22 s"


def test_what_is_no_sound_is_refused_by_name(explainer, tmp_path):
    (tmp_path / "note.txt").write_text("not a sound")
    refuses(explainer, str(tmp_path / "note.txt"), match=("note.txt", "WAV", "soundfile"))
    refuses(explainer, str(tmp_path / "missing.wav"), match=("missing.wav", "does not exist"))
    refuses(explainer, str(tmp_path), match=("cannot be read as a WAV file",))
    refuses(explainer, written(tmp_path / "empty.wav", np.zeros(0)), match=("holds no samples",))
    refuses(explainer, written(tmp_path / "fast.wav", tone(), rate=200), match=("200 samples per second", "with 100"))
    refuses(explainer, {"array": tone(), "sampling_rate": 8000}, match=("8000", "resample"))
    refuses(explainer, [tone(), "x.wav"], match=("input 1 (x.wav)", "does not exist"))
    refuses(explainer, [tone()[None]], match=("input 0", "[1, 66]", "one channel"))
    refuses(explainer, tone().astype(np.uint8), match=("uint8", "range"))
    refuses(explainer, tone() * np.nan, match=("NaN",))
    refuses(explainer, tone(5), match=("less than one frame",))
    refuses(explainer, np.zeros(0, np.float32), match=("[0]",))
    refuses(explainer, b"RIFF", match=("bytes", "as a sound"))
    masked = {"input_values": tone()[None], "attention_mask": [[1] * 60 + [0] * 6]}
    refuses(explainer, masked, match=("attention_mask", "padding"))
    refuses(explainer, {"input_features": tone()[None]}, match=("'input_features'", "input_values"))
    refuses(explainer, {"input_values": tone().astype(int)}, match=("int64", "floating-point"))
    refuses(DecompX(explainer.model), tone(), match=("processor",))
    refuses(DecompX(classifier("ast")), {"input_values": np.zeros((15, 10))}, match=("15 along time", "takes 16"))
    refuses(explainer, tone(), error=OptionError, match=("truncate",), truncate=True)
    refuses(explainer, tone(), match=("less than a frame", "0.04"), sources=0.01)
    refuses(DecompX(explainer.model), {"input_values": tone()}, match=("sampling rate is known",), sources=0.5)
    found = explainer([tone(), str(tmp_path / "note.txt")], on_error="skip")
    assert isinstance(found[1], Failure) and "note.txt" in found[1].error


def test_silence_is_explained(explainer):
    found = explainer(np.zeros(66, np.float32))
    assert found.completeness_error < ROUNDING and found.picture.pixels.unique().tolist() == [90, 255]


# What is shown.


def test_a_sound_is_saved_and_shown(explainer, tmp_path, capsys):
    found = explainer(tone(), sources=0.2)
    found.save(tmp_path / "one.safetensors")
    copies = (
        Explanation.load(tmp_path / "one.safetensors"),
        Explanation.from_dict(json.loads(json.dumps(found.to_dict()))),
        pickle.loads(pickle.dumps(found)),
    )
    for one in copies:
        assert torch.equal(one.picture.pixels, found.picture.pixels) and torch.equal(one.patches(), found.patches())
    page = explainer(tone()).to_html(full=True)
    assert "0.04-0.08 s" in page and page.count('<figure class="dx-picture') == 4
    assert explainer(tone()).to_png().startswith(b"\x89PNG")
    found.show(width=100)
    assert "0.20-0.40 s" in capsys.readouterr().out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    classifier("wav2vec2", dtype=torch.float32).save_pretrained(place)
    Wav2Vec2FeatureExtractor(sampling_rate=100).save_pretrained(place)
    written(place / "one.wav", tone())
    return place


def test_the_command_line_explains_sounds(folder, tmp_path):
    assert DecompX.from_pretrained(folder).task == "audio-classification"
    out = tmp_path / "o.json"
    assert (
        main(
            ["explain", "--audio", f"{folder}/one.wav", "--model", str(folder), "--sources", "0.2s", "--json", str(out)]
        )
        == 0
    )
    (found,) = json.loads(out.read_text())
    assert found["tokens"] == ["0.00-0.20 s", "0.20-0.40 s", "0.40-0.60 s"] and found["file"].endswith("one.wav")


def test_wrong_usage_is_refused(folder):
    result = CliRunner().invoke(cli, ["explain", "--audio", "x.wav"])
    assert result.exit_code == 2 and "--audio is for a --model that reads sounds" in result.output
    result = CliRunner().invoke(cli, ["explain", "--image", "x.png", "--audio", "x.wav", "--model", "m"])
    assert result.exit_code == 2 and "--image" in result.output
