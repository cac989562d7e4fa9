"""Which packages are installed, and from which folders. All other metadata is in pyproject.toml.

The Triton kernels live in the top folder ``kernels/`` and are installed as ``decompx_fast.kernels``. Nothing
may be installed as a top-level ``kernels``: that name belongs to another project, which transformers imports
when it is there. Hence three rules: packages are listed here, never discovered; ``kernels/`` has no
``__init__.py``; and a symlink, ``decompx_fast/kernels``, serves a source tree that is used where it lies.
"""

from setuptools import setup

PACKAGES = [
    "decompx_fast",
    "decompx_fast.engines",
    "decompx_fast.evaluation",
    "decompx_fast.evaluation.methods",
    "decompx_fast.kernels",
    "decompx_fast.linearize",
    "decompx_fast.ops",
]

PACKAGE_DIR = {"decompx_fast.kernels": "kernels"}

PACKAGE_DATA = {
    "decompx_fast": ["py.typed", "templates/*"],
    "decompx_fast.kernels": ["*"],
    "decompx_fast.linearize": ["*.safetensors"],
}

if __name__ == "__main__":
    setup(packages=PACKAGES, package_dir=PACKAGE_DIR, package_data=PACKAGE_DATA)
