"""The bias rules as one table: what each needs to know, and its number in the kernels.

It loads nothing, so that options can be checked without PyTorch; :mod:`.ops.shares` and :mod:`.engines.bias` compute
what it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What shares are made of: dots of the vectors with the bias, which are linear in them; their lengths, which are not
#: (with or without dots); or no numbers of the vectors, so that what is shared is linear in the inputs.
Needs = Literal["dots", "lengths", "nothing"]


@dataclass(frozen=True)
class RuleFacts:
    """What there is to know of a bias rule.

    Attributes:
        needs: of the vectors.
        number: what the kernels in C++ and CUDA call it (``Rule`` and ``DecompxRule`` in ``csrc``); ``None`` where they
            have it not.
        in_ops: whether the ops on vectors have it; the others take a source more, which engines provide.
    """

    needs: Needs
    number: int | None = None
    in_ops: bool = True


#: By name; :class:`.config.DecompXConfig` says what each does.
BIAS_RULES: dict[str, RuleFacts] = {
    "absdot": RuleFacts("dots", 0),
    "dot": RuleFacts("dots", 1),
    "equal": RuleFacts("nothing", 2),
    "cls": RuleFacts("nothing", 3),
    "none": RuleFacts("nothing", 4),
    "norm": RuleFacts("lengths"),
    "abssim": RuleFacts("lengths"),
    "bias_token": RuleFacts("nothing", in_ops=False),
}


def rules_that_need(*needs: Needs) -> tuple[str, ...]:
    """The rules that need one of these."""
    return tuple(name for name, facts in BIAS_RULES.items() if facts.needs in needs)


#: Those of the ops, and those of their kernels; the others take the twins.
OP_RULES = tuple(name for name, facts in BIAS_RULES.items() if facts.in_ops)
KERNEL_RULES = tuple(name for name, facts in BIAS_RULES.items() if facts.number is not None)

#: Weights are the dots, so that dots known beforehand can be given.
DOT_RULES = rules_that_need("dots")

#: Shares do not depend on the vectors, so that a score is linear in the inputs.
LINEAR_RULES = rules_that_need("nothing")

#: Shares can be known before the vectors are formed, since dots are linear.
FUNCTIONAL_RULES = rules_that_need("dots", "nothing")

#: Shares are made of the vectors.
VECTOR_RULES = rules_that_need("dots", "lengths")
