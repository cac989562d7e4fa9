"""What several processes explain together, in the tests of sharding; each case is made anew in each process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import encoder_decoders
import random_models
import sound_models
import synthetic
import terms_of
import test_families
import torch
import torch.distributed as dist
from transformers import BertForMaskedLM

from decompx_fast import DecompX
from decompx_fast.config import DecompXConfig
from decompx_fast.engines.exchange import Exchange
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.forward.propagation import Propagation
from decompx_fast.engines.terms import Terms
from decompx_fast.errors import NumericalError
from decompx_fast.linearize.linearization import linearize

RANKS = 3
RULES = ("absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none")
NORMS = ("abssim", "norm")  # for the direct path alone
TINY = 1  # bytes: every block becomes one source or one row
BY_TWO = ("absdot-direct", "absdot-operator", "norm-direct", "equal-direct", "bias_token-direct", "cls-direct")
TEXTS = [[1, 7, 9, 8, 2], [1, 5, 6, 2], [1, 11, 2], [1, 12, 13, 14, 15, 16, 2], [1, 8, 2]]  # token ids
TEXT = "good film, and a dull one"
ASKED: dict[str, dict[str, Any]] = {
    "forward": {"engine": "forward", "bias": "cls"},
    "adjoint": {"engine": "adjoint", "bias": "cls"},
    "focus": {"sources": "focus", "focus": 2},
}
README = Path(__file__).parent.parent / "README.md"
GROUPS = torch.tensor([[0, 0, 1, 3, 3, 2, 0], [3, 1, 1, 0, 0, 2, 0]])


@dataclass(frozen=True)
class Case:
    """An explanation by the forward engine; ``make`` gives the linearised model."""

    make: Callable[[], Any]
    config: DecompXConfig
    options: dict[str, Any] = field(default_factory=dict)


def of_family(case: str) -> Any:
    return linearize(test_families.classifier(case), test_families.inputs(case, 2, 7))


def of_averaged() -> Any:
    """A head that is applied to each token, whose outputs are averaged."""
    return of_family("eurobert_late")


def of_language_model() -> Any:
    model = terms_of.bert(BertForMaskedLM)
    return linearize(model, {"input_ids": torch.arange(14).view(2, 7) + 5})


def of_sounds() -> Any:
    case = "whisper_all_layers"
    return linearize(sound_models.classifier(case), sound_models.inputs(case))


def of_nothing_attended() -> Any:
    """No vector that an attention gives tells who shares its bias."""
    linearization = synthetic.hugging_face(batch=1, n=4)
    for layer in linearization._spec.layers:
        layer[0].ops[0].value.weight.zero_()
        layer[0].ops[0].value.bias.zero_()
    linearization._check = lambda *args, **kwargs: None
    return linearization


def bert() -> Any:
    return synthetic.hugging_face(batch=2)


def cases() -> dict[str, Case]:
    found, language = {}, {"terms": Terms(torch.tensor([[0, 6, 2], [5, 1, 1]]), torch.tensor([[1, 0, 2], [0, 9, 2]]))}
    columns = torch.tensor([[[1.0, -1.0, 0.0], [0.0, 0.5, 2.0]]]).double().expand(2, -1, -1)
    averaged = {"terms": Terms(None, torch.tensor([[2, 0, -1], [1, 1, 2]]), columns)}  # -1: the mean of all outputs
    for rule in RULES:
        for path in ("direct",) if rule in NORMS else ("direct", "operator"):
            config = DecompXConfig(bias=rule, activation="linear", tanh="linear")
            found[f"{rule}-{path}"] = Case(bert, config, {"path": path})
            config, options = DecompXConfig(bias=rule, variant="released"), {"path": path, "workspace_bytes": TINY}
            found[f"{rule}-{path}-released"] = Case(lambda: synthetic.hugging_face(n=5), config, options)
        config = DecompXConfig(bias=rule)
        for n in (1, 2):
            found[f"{rule}-{n}"] = Case(lambda n=n: synthetic.hugging_face(n=n), config)
        found[f"{rule}-groups"] = Case(bert, config, {"sources": GROUPS})
        found[f"{rule}-nothing-attended"] = Case(of_nothing_attended, config)
        found[f"{rule}-language-model"] = Case(of_language_model, config, language)
        found[f"{rule}-averaged"] = Case(of_averaged, config)
        found[f"{rule}-averaged-terms"] = Case(of_averaged, config, averaged)
    for split in ("absdot", "abssim", "norm", "equal", "cls", "dot"):
        config = DecompXConfig(bias="bias_token", bias_token_split=split)
        found[f"split-{split}"] = Case(bert, config)
        found[f"split-{split}-language-model"] = Case(of_language_model, config, language)
        found[f"split-{split}-averaged"] = Case(of_averaged, config)
    for rule in ("absdot", "equal", "cls", "bias_token"):
        found |= {f"{rule}-{name}": case for name, case in of_other_forms(DecompXConfig(bias=rule)).items()}
    return found


def of_other_forms(config: DecompXConfig) -> dict[str, Case]:
    """Other architectures, and other things that are asked."""
    found = {
        shape: Case(lambda shape=shape: random_models.random_model(shape), config) for shape in random_models.LAYERS
    }
    for family in ("mobilebert", "deberta_convolution", "longformer"):
        found[family] = Case(lambda family=family: of_family(family), config)
    places = Terms(torch.tensor([[7, 7, 9], [8, 8, 10]]), torch.tensor([[3, 8, 5], [0, 9, 2]]))
    return found | {
        "encoder-decoder": Case(of_encoder_decoder, config, {"terms": places}),
        "sounds": Case(of_sounds, config),
        "stages": Case(bert, config.replace(stages=("encoder", "aggregated", "pooler"), stage_output="vector")),
        "no-head": Case(bert, config.replace(head=False, stages=("encoder",))),
        "rows": Case(bert, config, {"positions": (0, -1, 3)}),
        "averaged-groups": Case(of_averaged, config, {"sources": GROUPS}),
        "averaged-stages": Case(of_averaged, config.replace(stages=("pooler",), stage_output="vector")),
    }


def of_encoder_decoder() -> Any:
    return linearize(encoder_decoders.model_of("bart"), encoder_decoders.inputs())


def ranks_of(name: str) -> tuple[int, ...]:
    """In which groups a case is explained: parts that are not as long are those of most."""
    return (2, RANKS) if name in BY_TWO else (RANKS,)


def attribute(case: Case, exchange: Exchange | None = None) -> Any:
    return forward.attribute(case.make(), case.config, exchange=exchange, **case.options)


def work(rank: int, folder: str) -> None:
    """What a process does: all cases in both groups, then what goes wrong; found is what each gave."""
    torch.set_num_threads(1)
    where = {"init_method": f"file://{folder}/store", "rank": rank, "world_size": RANKS}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60), **where)
    groups = {2: dist.new_group([0, 1]), RANKS: dist.group.WORLD}
    found: dict[str, Any] = {}
    for ranks, group in groups.items():
        if rank >= ranks:
            continue
        for name, case in cases().items():
            if ranks not in ranks_of(name):
                continue
            exchange = Exchange(group)
            found[f"{name}-{ranks}"] = (attribute(case, exchange), exchange.count, exchange.sent_bytes)
    found |= failures(rank) | explained(dist.group.WORLD) | skipped(rank) | readme(folder)
    torch.save(found, Path(folder) / f"{rank}.pt")
    dies_with_one(rank, Path(folder))


def explained(group: Any = None) -> dict[str, list[torch.Tensor]]:
    """What an explainer gives for one text, and for several, by each engine, and of the tokens in focus."""
    explainer, found = DecompX(test_families.classifier("bert"), group=group), {}
    for name, asked in ASKED.items():
        found[f"one-{name}"] = [explainer.explain(TEXTS[0], **asked).scores]
        found[f"several-{name}"] = [one.scores for one in explainer.explain(TEXTS, **asked)]
    return found


def readme(folder: str) -> dict[str, torch.Tensor]:
    """What the README says to type, in a process that has its group already."""
    (block,) = (
        block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "dist.group" in block
    )
    block = block.replace('dist.init_process_group("gloo")', "")
    block = block.replace("path/to/a/classifier", f"{folder}/model").replace("/a/disk/with/room", folder)
    names = {"DecompX": DecompX, "text": TEXT}
    exec(block, names)
    assert names["explainer"].ranks == RANKS
    return {"readme": names["explanation"].scores}


def skipped(rank: int) -> dict[str, list[str]]:
    """Of several texts what becomes of those that one process fails at, whether it has them to itself or not."""
    explainer, found, apply = DecompX(test_families.classifier("bert"), group=dist.group.WORLD), {}, Propagation.apply

    def failing(self: Propagation, layer: Any) -> None:
        if rank == 1 and self.embedding.shape[1] == len(TEXTS[1]):
            raise NumericalError("the vectors left the range")
        apply(self, layer)

    Propagation.apply = failing
    for name, texts in (("divided", TEXTS), ("shared", TEXTS[1:2])):
        results = explainer.explain(texts, engine="forward", on_error="skip")
        found[f"skipped-{name}"] = ["fine" if one.ok else one.error for one in results]
    Propagation.apply = apply
    return found


def failures(rank: int) -> dict[str, str]:
    """What each process says where one of them fails, or was given something else."""
    found, apply = {}, Propagation.apply
    case = Case(lambda: synthetic.hugging_face(batch=2), DecompXConfig())

    def said(name: str, case: Case) -> None:
        try:
            attribute(case, Exchange(dist.group.WORLD))
            found[name] = "nothing"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"

    def fail(error: Exception) -> Callable[..., None]:
        def failing(self: Propagation, layer: Any) -> None:
            apply(self, layer)
            if layer.index == 1 and rank == 1:
                raise error

        return failing

    for name, error in (
        ("numbers", NumericalError("the vectors left the range")),
        ("memory", MemoryError()),
        ("bug", KeyError("gamma")),
    ):
        Propagation.apply = fail(error)
        said(name, case)
        Propagation.apply = apply
    said("input", Case(lambda: synthetic.hugging_face(batch=2, seed=rank // 2), DecompXConfig()))
    said("options", Case(case.make, DecompXConfig(bias="absdot" if rank < 2 else "norm")))
    said("after", case)
    return found


def dies_with_one(rank: int, folder: Path) -> None:
    """The last process is killed in the middle; the others say so and end."""
    apply = Propagation.apply

    def dying(self: Propagation, layer: Any) -> None:
        if layer.index == 1 and rank == RANKS - 1:
            os._exit(9)
        apply(self, layer)

    Propagation.apply = dying
    try:
        attribute(Case(lambda: synthetic.hugging_face(batch=2), DecompXConfig()), Exchange(dist.group.WORLD))
    except Exception as error:
        (folder / f"{rank}.txt").write_text(f"{type(error).__name__}: {error}")
    os._exit(0)  # a group that has lost a member cannot be closed
