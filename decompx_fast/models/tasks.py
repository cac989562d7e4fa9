"""Which task a model does, by the name of its class, and how a model of a task is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..linearize.families import SOUNDS as FAMILIES_OF_SOUNDS
from ..linearize.families import TWO_HEADED
from ..linearize.families.unsupported import SOUNDS as REFUSED_SOUNDS


@dataclass(frozen=True)
class Kind:
    """The models of one task.

    Attributes:
        endings: of the names of their classes.
        loader: the class of transformers that loads them.
        trained_for: what such a model is trained for, for messages.
        also: the same for architectures that ``loader`` does not know.
    """

    endings: tuple[str, ...]
    loader: str
    trained_for: str
    also: tuple[str, ...] = ()


#: Of models with two heads, the tasks of both.
TWO_HEADS = ("fill-mask", "next-sentence-prediction")

#: Classes of classifiers of sounds, whose names would be those of classifiers of texts.
_OF_SOUNDS = tuple(
    name for name in (*FAMILIES_OF_SOUNDS, *REFUSED_SOUNDS) if name.endswith("ForSequenceClassification")
)

#: By the name of the task, sounds first; see :mod:`decompx_fast.request.tasks` for what each asks.
KINDS = {
    "audio-classification": Kind(
        ("ForAudioClassification", *_OF_SOUNDS), "AutoModelForAudioClassification", "audio classification"
    ),
    "text-classification": Kind(
        ("ForSequenceClassification",), "AutoModelForSequenceClassification", "sequence classification"
    ),
    "token-classification": Kind(
        ("ForTokenClassification",), "AutoModelForTokenClassification", "token classification"
    ),
    "question-answering": Kind(
        ("ForQuestionAnswering", "ForQuestionAnsweringSimple"), "AutoModelForQuestionAnswering", "question answering"
    ),
    "fill-mask": Kind(("ForMaskedLM", "WithLMHeadModel"), "AutoModelForMaskedLM", "masked language modelling"),
    "text-generation": Kind(("ForCausalLM", "LMHeadModel"), "AutoModelForCausalLM", "language modelling"),
    "text2text-generation": Kind(
        ("ForConditionalGeneration", "MTModel"), "AutoModelForSeq2SeqLM", "writing a text from a text"
    ),
    "multiple-choice": Kind(("ForMultipleChoice",), "AutoModelForMultipleChoice", "multiple choice"),
    "image-classification": Kind(
        ("ForImageClassification", "ForImageClassificationWithTeacher"),
        "AutoModelForImageClassification",
        "image classification",
    ),
    "next-sentence-prediction": Kind(
        ("ForNextSentencePrediction", *TWO_HEADED),
        "AutoModelForNextSentencePrediction",
        "next-sentence prediction",
        also=("AutoModelForPreTraining",),
    ),
}

#: The tasks of models that write: on from a prompt, or by a decoder from what an encoder reads.
WRITES_ON, WRITES_ANEW = "text-generation", "text2text-generation"

#: The tasks of models that read two texts at once, and what they say of these.
PAIRS = {
    "next-sentence-prediction": "whether a second text follows a first",
    "multiple-choice": "how well a second text, the choice, goes with a first",
}

#: The tasks of models that read pictures, and sounds.
PICTURES, SOUNDS = "image-classification", "audio-classification"

#: What is taken for the task of a model whose class says none: it is what it was asked first.
DEFAULT = "text-classification"


def task_of_name(name: str) -> str | None:
    """The task of models whose class is called so; ``None`` if it has none of these heads."""
    found = (task for task, kind in KINDS.items() if name.endswith(kind.endings))
    return next(found, None)


def task_of_model(model: nn.Module) -> str | None:
    """The task of a model, by its class or the classes that it is made from; ``None`` for one of no such head."""
    found = (task_of_name(cls.__name__) for cls in type(model).__mro__)
    return next((task for task in found if task is not None), None)


def two_heads_of(model: nn.Module) -> str | None:
    """The class of a model of two heads; ``None`` for others."""
    return next((cls.__name__ for cls in type(model).__mro__ if cls.__name__ in TWO_HEADED), None)


def task_of_architectures(names: Sequence[str] | None) -> str:
    """The task of a saved model, by what its configuration calls its class."""
    return next((task for name in names or () if (task := task_of_name(name)) is not None), DEFAULT)
