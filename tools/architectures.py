"""What was measured of every architecture with every head: a table of random models, in all three engines.

    python tools/architectures.py                       # writes bench/results/architectures.md and .json
    python tools/architectures.py --only Bert --configurations 5 --out build
    python tools/architectures.py --missing             # only what the files have no row of; their other rows are kept

Rows are the classes that are registered and those that are refused by name, so it grows with them. Each class is made
in a few random small configurations and asked for a few of its outputs, under the rules that its engines answer. Of
each row the largest is told: how far a recomputed layer is from the model's own states, how far scores are from adding
up to what the model gives (in float64, and in float32), and how far engines are from the reference engine; all relative
to the sum of the absolute scores, but for layers, where it is to the size of the state. What fails is a row that says
why.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from decompx_fast import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.terms import Terms
from decompx_fast.linearize.families import ENCODER_DECODERS, FAMILIES
from decompx_fast.linearize.families.towers import PAIRED
from decompx_fast.linearize.families.unsupported import UNSUPPORTED
from decompx_fast.linearize.linearization import linearize, specification
from decompx_fast.linearize.spec import ModelSpec
from decompx_fast.linearize.towers import TwoTowers
from decompx_fast.models.tasks import SOUNDS, task_of_name

RESULTS = Path(__file__).resolve().parent.parent / "bench" / "results"

ENGINES = {"reference": reference, "forward": forward, "adjoint": adjoint}

#: The rules that are asked: one by the vectors, which the adjoint engine has not, and one that all engines have.
RULES = ("absdot", "bias_token")

#: What T5 and its kin begin with.
T5_LIKE = ("T5", "MT5", "UMT5")

#: What an architecture needs besides sizes, by what its classes begin with.
OPTIONS: dict[str, dict[str, Any]] = {
    "BigBird": {"block_size": 1, "num_random_blocks": 1},
    "DebertaV2": {
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "Deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "Esm": {"position_embedding_type": "rotary", "mask_token_id": 4},
    "Flaubert": {"pad_index": 1, "bos_index": 0, "eos_index": 2},
    "Longformer": {"attention_window": 4, "sep_token_id": 2},
    "MobileBert": {"intra_bottleneck_size": 8, "embedding_size": 6, "num_feedforward_networks": 2},
    "ModernBert": {"local_attention": 6, "cls_token_id": 0, "sep_token_id": 2},
    "XLM": {"pad_index": 1, "bos_index": 0, "eos_index": 2},
    "CodeGen": {"rotary_dim": 2, "n_head": 4, "num_attention_heads": 4},
    "GPTJ": {"rotary_dim": 2},
    "GPTNeo": {
        "attention_types": [[["global", "local"], 1]],
        "num_layers": 2,
        "num_hidden_layers": 2,
        "window_size": 4,
    },
    "GPTNeoX": {},
    "Persimmon": {"partial_rotary_factor": 1.0},
    "Phi": {"partial_rotary_factor": 1.0},
    "StableLm": {"partial_rotary_factor": 1.0},
    **{name: {"d_kv": 5, "relative_attention_max_distance": 9} for name in T5_LIKE},
}

#: Architectures whose configuration makes a head's size itself.
OWN_HEAD_SIZE = ("Falcon",)

#: Architectures of experts, which transformers multiplies in groups unless told otherwise, and in float64 only so.
ROUTED = ("GptOss", "Mixtral", "Olmoe", "Qwen2Moe", "Qwen3Moe")

#: Sizes that only pictures have: of a picture, of its patches, and its channels.
PICTURE = {"image_size": 12, "patch_size": 4, "num_channels": 3}

#: Sizes that only sounds have: of spectrograms, of the convolutions that make frames, and of those that place them.
SOUND: dict[str, Any] = {
    "max_length": 16,
    "num_mel_bins": 10,
    "patch_size": 4,
    "frequency_stride": 3,
    "time_stride": 3,
    "max_source_positions": 9,
    "conv_dim": (8, 8),
    "conv_kernel": (4, 3),
    "conv_stride": (2, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 10,
}

#: How an encoder with a decoder beside it calls its sizes.
ENCODER = {"layers": "hidden_layers", "attention_heads": "attention_heads"}

#: How configurations call their sizes: hidden size, heads, layers, size of the network, of an embedding, positions.
NAMES = {
    "d": ("hidden_size", "dim", "n_embd", "d_model", "emb_dim"),
    "heads": ("num_attention_heads", "n_heads", "n_head", "num_heads", "encoder_attention_heads"),
    "decoder_heads": ("decoder_attention_heads",),
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers"),
    "decoder_layers": ("decoder_layers", "num_decoder_layers"),
    "f": ("intermediate_size", "hidden_dim", "n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"),
    "n": ("max_position_embeddings", "n_positions"),
}

VOCABULARY, POSITIONS = 60, 40

NAME = re.compile(r"(\w+?)(For\w+|WithLMHeadModel|LMHeadModel|HeadModel|MTModel|EncoderModel|Model)")


def parted(name: str) -> tuple[str, str]:
    """Architecture and head of a class name."""
    match = NAME.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def random_model(name: str, seed: int, dtype: torch.dtype) -> nn.Module:
    """A small model of the class in eval mode, of random sizes, every weight random; equal seeds give equal models."""
    draw = random.Random(f"{name} {seed}")
    heads, size = draw.choice((2, 4)), draw.choice((4, 6, 8))
    sizes = {
        "d": heads * size,
        "heads": heads,
        "layers": draw.choice((1, 2, 3)),
        "f": draw.randrange(9, 40),
        "n": POSITIONS,
    }
    if name in ENCODER_DECODERS:
        sizes |= {"decoder_heads": 2, "decoder_layers": draw.choice((1, 2, 3))}
    options = {alias: sizes[what] for what, aliases in NAMES.items() if what in sizes for alias in aliases}
    options |= {"vocab_size": VOCABULARY, "num_labels": 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    options |= {"decoder_start_token_id": 2} if name in ENCODER_DECODERS else {}
    options |= {"num_key_value_heads": draw.choice((heads, heads // 2)), "head_dim": size}
    prefixes = sorted((prefix for prefix in OPTIONS if name.startswith(prefix)), key=len)
    options |= OPTIONS[prefixes[-1]] if prefixes else {}
    options = {key: value for key, value in options.items() if key != "head_dim" or not name.startswith(OWN_HEAD_SIZE)}
    if name.startswith(("CLIP", "MetaClip2", "Siglip")):
        options["vision_config"] = {**options, **PICTURE}
        options["text_config"] = {**options, "projection_size": sizes["d"]}
    if "ForImageClassification" in name:
        options |= PICTURE
    if task_of_name(name) == SOUNDS:
        options |= SOUND | {f"encoder_{what}": options[f"num_{alias}"] for what, alias in ENCODER.items()}
        options |= {"encoder_ffn_dim": sizes["f"]}
    cls = getattr(transformers, name)
    plain = {"experts_implementation": "eager"} if name.startswith(ROUTED) else {}
    plain |= {"attn_implementation": "eager"} if name.startswith("UMT5") else {}  # refused otherwise in some versions
    model: nn.Module = cls._from_config(cls.config_class(**options), **plain).to(torch.float64).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            gain = 1 if parameter.ndim == 1 and path.endswith("weight") else 0
            parameter.copy_(gain + 0.2 * noise)
    return model.to(dtype)


def measured(name: str, model: nn.Module) -> tuple[nn.Module, ...]:
    """The model, or the two encoders that it is made of."""
    return TwoTowers(model).towers() if name in PAIRED else (model,)


def question(name: str, model: nn.Module, seed: int) -> tuple[dict[str, Tensor], Terms]:
    """Two inputs, and two outputs of each; at positions of their own where there are outputs at each."""
    generator = torch.Generator().manual_seed(seed)
    tokens = 8 + 2 * seed
    ids = torch.randint(5, VOCABULARY, (2, tokens), generator=generator)
    if name.startswith("Longformer"):
        ids[:, [2, 3, -1]] = 2  # two texts, as its heads need them
    spec = specification(model)
    if spec.encoder_layers:
        return question_of_decoder(name, spec, ids, generator)
    outputs = torch.randint(0, spec.classes, (2, 2), generator=generator)
    if spec.limits.sound is not None:
        shape = [40 if size is None else size for size in spec.limits.sound.sizes]
        values = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
        return {spec.limits.sound.name: values.to(next(model.parameters()).dtype)}, Terms(None, outputs)
    if spec.limits.picture is not None:
        size = PICTURE["image_size"]
        pixels = torch.randn(2, PICTURE["num_channels"], size, size, generator=generator, dtype=torch.float64)
        return {"pixel_values": pixels.to(next(model.parameters()).dtype)}, Terms(None, outputs)
    positions = torch.randint(0, tokens, (2, 2), generator=generator) if spec.read == "each" else None
    return {"input_ids": ids}, Terms(positions, outputs)


def question_of_decoder(
    name: str, spec: ModelSpec, ids: Tensor, generator: torch.Generator
) -> tuple[dict[str, Tensor], Terms]:
    """The same of a model with a decoder beside its encoder, which has the outputs."""
    outputs = torch.randint(0, spec.classes, (2, 2), generator=generator)
    if "ForSequenceClassification" in name:
        ids[:, -1] = 2  # the end, which its head reads
        return {"input_ids": ids}, Terms(None, outputs)
    given, tokens = {"input_ids": ids}, ids.shape[1]
    if spec.shifted is None:
        tokens -= 3
        given["decoder_input_ids"] = torch.randint(2, VOCABULARY, (2, tokens), generator=generator)
    return given, Terms(ids.shape[1] + torch.randint(0, tokens, (2, 2), generator=generator), outputs)


def measure(name: str, seed: int) -> Iterator[tuple[str, str, float]]:
    """What one random model gives: ``(engine, what, value)``."""
    for dtype, kind in ((torch.float64, "float64"), (torch.float32, "float32")):
        for model in measured(name, random_model(name, seed, dtype)):
            given, terms = question(name, model, seed)
            for rule in RULES:
                truth: Tensor | None = None
                for engine, module in ENGINES.items():
                    if engine == "adjoint" and rule not in ("bias_token",):
                        continue
                    linearization = linearize(model, given)
                    found = module.attribute(linearization, DecompXConfig(bias=rule), terms=terms)
                    collected = 0 if found.bias_token is None else found.bias_token
                    size = found.scores.abs().sum(1).max().item()
                    size = max(size, linearization.values(terms).abs().max().item())
                    error = (found.scores.sum(1) + collected - linearization.values(terms)).abs().max().item()
                    yield engine, f"completeness_{kind}", error / size
                    if kind == "float64":
                        yield engine, "layer_gap", linearization.max_gap
                        truth = found.scores if truth is None else truth
                        yield engine, "difference", (found.scores - truth).abs().max().item() / size


def row_of(name: str, configurations: int) -> dict[str, Any]:
    """A row of the table."""
    architecture, head = parted(name)
    row: dict[str, Any] = {"class": name, "architecture": architecture, "head": head, "configurations": 0}
    if name not in FAMILIES and name not in PAIRED:
        return row | {"refused": UNSUPPORTED[name]}
    engines: dict[str, dict[str, float]] = {engine: {} for engine in ENGINES}
    for seed in range(configurations):
        try:
            for engine, what, value in measure(name, seed):
                engines[engine][what] = max(engines[engine].get(what, 0.0), value)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return row | {"failed": f"{type(error).__name__} in {Path(where.filename).name}: {error}"}
        row["configurations"] += 1
    return row | {"engines": engines}


def names(only: list[str]) -> list[str]:
    """The classes that are registered or refused, all of them, or those that begin so."""
    found = sorted({*FAMILIES, *PAIRED, *UNSUPPORTED})
    return [name for name in found if not only or name.startswith(tuple(only))]


def kept(path: Path, versions: dict[str, str]) -> dict[str, dict[str, Any]]:
    """By class, the rows of a file that need not be measured again: it is of these versions, and the row of measures.

    Raises:
        SystemExit: for a file of other versions, whose rows would be told as if they were of these.
    """
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    theirs = {name: found[name] for name in versions}
    if theirs != versions:
        raise SystemExit(f"--missing: {path} was made with {theirs}, and these are {versions}: measure all rows")
    return {row["class"]: row for row in found["rows"] if "engines" in row}


def _number(row: dict[str, Any], engine: str, what: str) -> str:
    value = row["engines"][engine].get(what)
    return "" if value is None else f"{value:.0e}"


def markdown(rows: list[dict[str, Any]], command: str) -> str:
    """The table, with what is refused or failed after it."""
    shown = [row for row in rows if "engines" in row]
    refused, failed = ([row for row in rows if kind in row] for kind in ("refused", "failed"))
    lines = [
        "# Architectures, heads and engines",
        "",
        f"{len(rows)} classes of transformers {transformers.__version__}: {len(shown)} explained, {len(refused)} "
        f"refused by name, {len(failed)} failed. What the columns mean: `tools/architectures.py`; made by `{command}` "
        f"with torch {torch.__version__} on the CPU.",
        "",
        "r, f, a: the reference, forward and adjoint engine. Layers of models that take some steps in float32 whatever "
        "their dtype are as far from the model as float32 is.",
        "",
        "| architecture | head | models | layer gap | float64 r | f | a | float32 r | f | a | f to r | a to r |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in shown:
        numbers = [max(values["layer_gap"] for values in row["engines"].values())]
        cells = [f"{number:.0e}" for number in numbers]
        for what in ("completeness_float64", "completeness_float32"):
            cells += [_number(row, engine, what) for engine in ENGINES]
        cells += [_number(row, engine, "difference") for engine in ("forward", "adjoint")]
        lines.append(f"| {row['architecture']} | {row['head']} | {row['configurations']} | {' | '.join(cells)} |")
    for kind, title, chosen in (("failed", "Failed", failed), ("refused", "Refused, and why", refused)):
        if chosen:
            lines += ["", f"## {title}", "", "| class | reason |", "| --- | --- |"]
            lines += [f"| {row['class']} | {' '.join(row[kind].split()).replace('|', '/')} |" for row in chosen]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Measure, write both files, and say how many rows there are; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=2, help="random models of each class")
    parser.add_argument("--only", nargs="*", default=[], help="only classes that begin so")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of both files")
    parser.add_argument("--missing", action="store_true", help="keep the rows of these files, and measure the others")
    options = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    known = kept(options.out / "architectures.json", versions) if options.missing else {}
    rows = []
    for name in names(options.only):
        if name in known:
            rows.append(known[name])
            continue
        rows.append(row_of(name, options.configurations))
        print(f"{name}: {rows[-1].get('failed') or rows[-1].get('refused') or 'measured'}", file=sys.stderr, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "architectures.json").write_text(json.dumps({**versions, "rows": rows}, indent=1) + "\n")
    chosen = f" --only {' '.join(options.only)}" if options.only else ""
    command = f"python tools/architectures.py --configurations {options.configurations}{chosen}"
    (options.out / "architectures.md").write_text(markdown(rows, command))
    failed = sum("failed" in row for row in rows)
    print(f"{len(rows)} classes, {failed} failed: {options.out / 'architectures.md'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
