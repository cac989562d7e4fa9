"""What each task asks of an input: columns by default and by name, and what the model says by itself.

A file for each task whose head answers at positions; tasks whose head answers once are all classes, by name.
"""

from __future__ import annotations

from typing import Any, get_args

from ...errors import OptionError
from ...result.readings import TaskName
from .columns import Question, Task
from .fill_mask import FillMask
from .generation import TextGeneration
from .question_answering import OUTPUTS, QuestionAnswering
from .token_classification import TokenClassification

#: Names that users know from elsewhere.
ALIASES = {
    "sequence-classification": "text-classification",
    "sentiment-analysis": "text-classification",
    "ner": "token-classification",
    "masked-lm": "fill-mask",
    "causal-lm": "text-generation",
    "generate": "text-generation",
    "seq2seq-lm": "text2text-generation",
    "summarization": "text2text-generation",
    "translation": "text2text-generation",
    "sentence-order-prediction": "next-sentence-prediction",
}

#: The outputs of heads that have names, whatever the configuration says; of a vocabulary, which is large, none.
NAMED_OUTPUTS: dict[str, tuple[str, ...]] = {
    "multiple-choice": ("choice",),
    "next-sentence-prediction": ("follows", "does not follow"),
    "question-answering": OUTPUTS,
    "fill-mask": (),
    "text-generation": (),
    "text2text-generation": (),
}

#: What each argument is for, for messages.
_FOR = {
    "at": "models that answer at positions",
    "top_k": "models that choose among labels or tokens at positions",
    "max_answer_tokens": "question answering",
    "max_seq_len": "question answering",
    "doc_stride": "question answering",
    "ignore_labels": "token classification",
    "continuation": "language models",
    "generate": "language models",
    "seed": "language models that write, and scores along paths (steps=)",
    "contrast": "language models",
    "answer": "language models",
}


def check_task(name: Any) -> str:
    """A task by any of its names.

    Raises:
        OptionError: if there is none of this name.
    """
    found = ALIASES.get(name, name) if isinstance(name, str) else name
    if found not in get_args(TaskName):
        way = ""
        if name in ("similarity", "sentence-similarity", "feature-extraction"):
            way = "; texts are compared by similarity(a, b), or `decompx-fast similarity A B`, and no task is named"
        raise OptionError(f"task={name!r} is no task: use one of {', '.join(map(repr, get_args(TaskName)))}{way}")
    return str(found)


def check_question(question: Question, takes: tuple[str, ...], task: str) -> None:
    """Refuse what this task does not know.

    Raises:
        OptionError: names the argument.
    """
    for name, what in _FOR.items():
        value = getattr(question, name)
        if value is not None and name not in takes:
            raise OptionError(f"{name}={value!r} is for {what}, and the task of this model is {task}: leave it out")


def position_task(name: str, *, labels: tuple[str, ...], tokenizer: Any) -> Task | None:
    """What asks for columns at positions; ``None`` for a task whose head answers once."""
    if name == "token-classification":
        return TokenClassification(labels)
    if name == "question-answering":
        return QuestionAnswering(getattr(tokenizer, "cls_token_id", None))
    if name == "fill-mask":
        return FillMask(tokenizer, getattr(tokenizer, "mask_token_id", None))
    if name in ("text-generation", "text2text-generation"):
        return TextGeneration(tokenizer)
    return None
