"""Operations on the decomposed state ``[b, i, k, d]``: each checks its arguments and dispatches to a backend.

They are ``torch.library`` custom ops (``decompx_fast::<op>``), usable without the rest of the package. Each
has a twin in plain PyTorch, ``<op>_torch``, in the same file; Triton kernels are loaded on first use.

None is differentiable: tensors that require grad are refused unless grad mode is off, and so are those that
``torch.func`` transforms. What an op writes to may share no memory with what it reads.
"""

from .activation import activation_
from .add_norm import add_norm_
from .backends import cuda as _cuda  # noqa: F401  (makes its backend known)
from .backends.launches import use_launches
from .bias_split import bias_split_
from .functional_dots import MOST_FUNCTIONALS, functional_dots
from .layernorm import layernorm_
from .mixing import Precision, mixing, with_padded_rows
from .network import is_fused as network_is_fused
from .network import network
from .position_apply import position_apply
from .position_operator import FrozenNorm, fold_norm_in, fold_norm_out, position_operator
from .registry import add_backend, backend_names, usable
from .shares import RULES, Rule, bias_shares, vector_shares

__all__ = [
    "MOST_FUNCTIONALS",
    "RULES",
    "FrozenNorm",
    "Precision",
    "Rule",
    "activation_",
    "add_backend",
    "add_norm_",
    "backend_names",
    "bias_shares",
    "bias_split_",
    "fold_norm_in",
    "fold_norm_out",
    "functional_dots",
    "layernorm_",
    "mixing",
    "network",
    "network_is_fused",
    "position_apply",
    "position_operator",
    "usable",
    "use_launches",
    "vector_shares",
    "with_padded_rows",
]
