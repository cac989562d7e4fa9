"""DecompX: the thin wrapper round a Hugging Face model that reads texts and returns explanations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import torch

from .calls.arguments import Arguments, spelled_out
from .calls.call import Call, OnError, start
from .calls.checks import check_dtype, refuse_misspelt_arguments
from .calls.compiling import outside_compiler
from .calls.encoders import check_encoder, encoders_of
from .calls.explained_model import ExplainedModel
from .calls.planning import plan_call
from .calls.similarity import Comparison
from .engines.adjoint.plan import AdjointPlan
from .engines.choose import Execution
from .engines.focus_plan import FocusPlan
from .engines.forward.plan import Plan
from .engines.path_plan import PathPlan
from .request.versions import Baseline
from .result.explanation import Explanation
from .result.explanations import Explanations
from .result.failure import Failure
from .result.pair import PairExplanation

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: One text, or a pair: of all that one input can be, what a type checker can tell from several.
OneText: TypeAlias = str | tuple[str, str]
Texts: TypeAlias = list[str] | list[tuple[str, str]] | list[OneText]


class DecompX(ExplainedModel):
    """Explains what a model says by what each token contributed: to classes, labels of words, answers, words at masks.

    The scores of the tokens add up to the model's own number, such as the logit of each class. The model is used as it
    is: it may be in train or eval mode, in any floating dtype, compiled, under ``torch.inference_mode`` or not. What is
    explained is always its eval-mode function, and it is left as it was.

    Args:
        model: a Hugging Face model of a supported architecture with a head, whose class says what it is asked; or what
            gives one vector for a text; or a ``Pipeline`` of transformers, which brings its tokenizer along.
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
        group: a process group of ``torch.distributed`` (``torch.distributed.group.WORLD``), each process of which has
            this model and calls the same methods with the same arguments: a text is divided by its sources, several
            short texts are divided among the processes, and all get all results. An error of one is raised in all.
        task: of a model of two heads (``BertForPreTraining``), which is explained: ``"fill-mask"`` or
            ``"next-sentence-prediction"``. For :meth:`from_pretrained` see there.
        **options: single options of :class:`DecompXConfig`, such as ``bias="none"``.

    Raises:
        UnsupportedModelError: if the architecture is not supported.
        InputError: for an argument that cannot be used.
    """

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

    @spelled_out(Call)
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
        results, single = start(self, texts, arguments)
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

    @spelled_out(Call)
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
                token. ``at`` then names tokens of the output by number, from 0. Of an encoder-decoder, what it writes.
            generate: let the model write what follows: so many tokens at most, the likeliest each time, or a
                ``transformers.GenerationConfig``.
            seed: of a configuration that samples; ``None`` draws one. Of the tokens that ``steps`` draws; ``None``: 0.
                It is kept as ``metadata["seed"]``.
            contrast: ``"mean"``: each column less the mean of the vocabulary, which has nothing to do with the output.
            answer: ``"tokens"``, ``"sum"``: one column, the sum over the output; or ``"both"``.
            max_answer_tokens: of question answering; ``None``: 15.
            max_seq_len, doc_stride: of question answering, where the context is longer than the model: it is read in
                windows of so many tokens (``None``: as many as the model has positions), two of which share so many of
                the context (``None``: 128, or half of a window's). The window with the best answer is explained, or the
                one that holds what ``at`` names, whose own best answer is then the ``answer``; ``metadata`` has its
                number as ``window``, from 0, of ``windows``. Group ids (``sources``) are those of all tokens.
            ignore_labels: of token classification, the background's; ``None``: ``["O"]``.
            sources: what a source is: ``"token"``, ``"word"``, ``"sentence"``, or one group id per token. Of pictures
                ``"patch"``, ``(rows, columns)`` of blocks, or group ids ``[rows, cols]``; of a sound also ``"frame"``,
                or a number of seconds. Of long texts ``"focus"``: the tokens that matter most by the cheap scores of
                ``bias="none"`` (two passes of the model), each by itself, and all others by sentences.
            focus: with ``sources="focus"``, how many tokens stay sources of their own beside special ones (``None``:
                64), and in how many groups all others are at most, so that neighbouring sentences go together where
                there are more; a sentence of more than 64 tokens, or a text that is not known, is cut into windows. Of
                several targets, each token counts by its largest share of a target's ``|score|`` (for all of many
                classes, of the five likeliest). ``metadata["focus"]`` has the tokens that were ``kept``, which of the
                ``sources`` they are, and the ``share`` of each target's ``|score|`` without biases that they hold.
            is_split_into_words: each text is a list of its words, as the model was trained on, and a pair is a tuple of
                two lists; words are then these.
            truncate: cut inputs that are too long for the model, with a warning, instead of refusing them (or, in
                question answering, of reading them in windows).
            on_error: ``"raise"`` ends at the first input that cannot be explained, after those before it; ``"skip"``
                yields a :class:`Failure` in its place and goes on. What is wrong with the call is always raised.
            ids: a name of yours for each input, a string or a whole number, kept as ``metadata["id"]`` beside
                ``metadata["input"]``, its place from 0; for a single input, its name.
            batch_size: as for :class:`DecompX`.
            engine: as for :class:`DecompX`.
            dtype: as for :class:`DecompX`.
            path, backend, workspace_bytes, storage, folder: how the forward engine computes, and where its state is;
                see :func:`decompx_fast.engines.forward.run.attribute`.
            positions: target positions (negative ones count from the end) whose vectors after the last layer are kept
                as ``stages["rows"]``, ``[r, k]`` norms or, with ``stage_output="vector"``, ``[r, k, d]``.
            check: ``"standard"`` warns (:class:`decompx_fast.errors.PrecisionWarning`), for next to nothing, where the
                model magnifies rounding so much that scores may be wrong by percents; ``"thorough"`` measures how
                wrong they are, as ``score_error``, by computing twice more in float64. Completeness tells neither.
            progress: show a bar on standard error; ``None``: where that is a terminal and there are several batches.
            read_ahead: so many inputs are read ahead, whatever ``batch_size`` is: the more, the more of them are
                equally long.
            steps: average over texts of which ever more tokens are gone, so that scores hold for what is left, too: so
                many versions along a path that the most important tokens leave first, one path for each column (name
                the ``targets`` that you want), and as many with random sets of tokens
                (:mod:`decompx_fast.engines.path`). Versions are explained without biases (two passes of the model),
                unless the rule is linear in the inputs. ``"auto"``: 3, 6 ... 48 until the scores change by 10 % of
                their norm or less; ``metadata`` has the number and the last change. ``"search"``: tokens are
                taken out of the text and into the empty one, one at a time, of the three with the largest scores that
                which changes the model's values the most; a version is one pass then, and there are twelve for each
                token. The scores add up to the model's
                value less ``baseline_logits``, and special tokens, which are never gone, have 0; ``metadata`` has the
                standard error.
            baseline: what becomes of tokens that are gone: ``"mask"`` (if ``None``) or ``"pad"``, that token takes
                their place; ``"remove"``, the others close up. A search has the mean of ``"mask"`` and ``"remove"``
                if ``None``.
            **options: single options of :class:`DecompXConfig`.
        """
        return start(self, texts, arguments)[0]

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
        storage: str = "memory",
        folder: str | None = None,
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
            path, backend, workspace_bytes, storage, folder: as for :meth:`explain_iter`.
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
            execution=Execution(path, backend, workspace_bytes, self.exchange, storage, folder),
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
        focus: int | None = None,
        batch: int = 1,
        engine: str | None = None,
        targets: Any = None,
        dtype: str | torch.dtype | None = None,
        path: str = "auto",
        backend: str = "auto",
        workspace_bytes: int | None = None,
        storage: str = "memory",
        folder: str | None = None,
        ranks: int | None = None,
        steps: int | Literal["auto", "search"] | None = None,
        baseline: Baseline | None = None,
        **options: Any,
    ) -> Plan | AdjointPlan | FocusPlan | PathPlan:
        """What an explanation of inputs of some length needs, before anything is allocated.

        A model that answers at positions is reckoned with as many columns as ``targets`` has, or 8.

        It prints as a summary, in a notebook too. Bytes are those of tensors alive at one time; a process may hold on
        to more memory that was freed.

        Args:
            tokens: how many tokens an input has; of an encoder-decoder those of both, as if all went through both.
            sources: how many groups they belong to; ``None``: each token is a source.
            focus: with ``sources="focus"``, how many tokens stay sources of their own; it is reckoned with as many
                groups of all others, the most there are.
            batch: how many inputs are computed together.
            engine, targets: as for :meth:`explain_iter`. With ``auto``, the plan is of the engine that would be taken;
                the reference engine has none, so then it is of the forward engine, the only other that could answer.
            dtype: as for :class:`DecompX`.
            path, backend, workspace_bytes, storage, folder: as for
                :func:`decompx_fast.engines.forward.run.attribute`.
            ranks: among how many processes the sources of the forward engine are divided, each on a device or a machine
                of its own; ``None``: those of the group.
            steps, baseline: as for :meth:`explain_iter`: the plan is of the text and of all its versions
                (of the most that ``"auto"`` may take).
            **options: single options of :class:`DecompXConfig`.

        Returns:
            Peak memory, operations, path and blocks, and what to do if it does not fit; ``check()`` raises then.

        Raises:
            OptionError: for a size or an option that does not exist, an engine that cannot answer or has no plan, or a
                path that the model does not have.
        """
        call = Call(
            targets=targets,
            engine=engine,
            dtype=dtype,
            path=path,
            backend=backend,
            workspace_bytes=workspace_bytes,
            storage=storage,
            folder=folder,
            steps=steps,
            baseline=baseline,
        )
        return plan_call(
            self,
            tokens,
            sources=sources,
            focus=focus,
            batch=batch,
            ranks=self.ranks if ranks is None else ranks,
            config=self.config.replace(**options),
            call=call,
        )
