"""What the processor is said to be: its maker and its instruction sets, as the system names them."""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")

#: How a maker names itself; ARM names the maker by a number, and what counts there are the features.
VENDORS = {"AuthenticAMD": "amd", "HygonGenuine": "amd", "GenuineIntel": "intel"}


@dataclass(frozen=True)
class Processor:
    """The maker (``amd``, ``intel`` or ``other``) and the features, in small letters and digits: ``avx512bf16``."""

    vendor: str
    features: frozenset[str]


@functools.cache
def processor() -> Processor:
    """Of this machine; read once."""
    try:
        return from_cpuinfo(CPUINFO.read_text())
    except OSError:
        return from_torch()


def from_cpuinfo(text: str) -> Processor:
    """From what Linux says of the first processor."""
    first = text.split("\n\n")[0]
    fields: dict[str, str] = dict(re.findall(r"^(vendor_id|flags|Features)\s*:\s*(.*)$", first, re.MULTILINE))
    features: str = fields.get("flags", fields.get("Features", ""))
    return Processor(VENDORS.get(fields.get("vendor_id", ""), "other"), frozenset(map(_plain, features.split())))


def from_torch() -> Processor:
    """Where there is no such file: from what PyTorch finds out, if this version does."""
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    name = str(found.get("cpu_name", "")).lower()
    vendor = next((vendor for vendor in ("amd", "intel") if vendor in name), "other")
    return Processor(vendor, frozenset(_plain(feature) for feature, there in found.items() if there is True))


def _plain(feature: str) -> str:
    return feature.lower().replace("_", "")
