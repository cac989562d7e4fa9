"""Which of the installed fonts can draw a text with matplotlib."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache

from ..optional import import_optional

_NEEDED_BY = "Explanation.plot()"
_PLAIN = ("sans", "gothic", "hei")  # in the names of fonts without serifs, those of Chinese and Japanese among them
_STAND_INS = ("last resort", ".last", "adobe blank")  # have every character, and draw boxes or nothing
_MANY = 3  # that many characters are named in the warning


def choose_fonts(texts: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """The font families that together draw some texts: matplotlib takes the first that has a character.

    Args:
        texts: everything that is to be drawn.

    Returns:
        Names of families, those of the user's settings first, and the characters that none of the installed has.

    Raises:
        MissingPackageError: if matplotlib is not installed.
    """
    settings = import_optional("matplotlib", _NEEDED_BY).rcParams
    families: list[str] = list(settings["font.family"])
    files = _files_by_family()
    missing = frozenset(char for char in set("".join(texts)) if char.isprintable() and not char.isspace())
    for family in families:
        for name in settings.get(f"font.{family}", [family]):  # "sans-serif" stands for a list
            missing -= _drawn_by(files.get(name), missing)
    if missing and _add_new_fonts():
        files = _files_by_family()
    candidates = [(name, file) for name, file in files.items() if not name.lower().startswith(_STAND_INS)]
    while missing and candidates:
        drawn = {name: _drawn_by(file, missing) for name, file in candidates}
        best = min(drawn, key=lambda name: (-len(drawn[name]), not any(part in name.lower() for part in _PLAIN), name))
        if not drawn[best]:
            break
        families.append(best)
        missing -= drawn[best]
        candidates = [(name, file) for name, file in candidates if drawn[name] and name != best]
    return families, missing


def drawable(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """The texts with escapes for what no installed font has, and the families to draw them with; warns of escapes."""
    texts = list(texts)
    families, missing = choose_fonts(texts)
    unseen = {char for char in missing if _changes_another(char)}
    lacking = sorted(missing - unseen)
    if lacking:
        named = ", ".join(f"{char!r} (U+{ord(char):04X})" for char in lacking[:_MANY])
        warnings.warn(
            f"no installed font that matplotlib can draw with has {len(lacking)} of the characters, such as {named}: "
            "they are written as escapes. Install a font that has them, for example Noto Sans CJK, or Noto Emoji",
            stacklevel=4,
        )
    table = {ord(char): char.encode("ascii", "backslashreplace").decode() for char in lacking}
    table |= {ord(char): "" for char in unseen}
    return [text.translate(table) for text in texts], families


def _changes_another(char: str) -> bool:
    """Joiners, variation selectors and skin tones: without a glyph of theirs, what they change is drawn plain."""
    return unicodedata.category(char) == "Cf" or "\ufe00" <= char <= "\ufe0f" or "\U0001f3fb" <= char <= "\U0001f3ff"


@lru_cache(maxsize=1)
def _add_new_fonts() -> bool:
    """Tell matplotlib of the fonts that were installed after it wrote its list; whether there were any."""
    manager = import_optional("matplotlib.font_manager", _NEEDED_BY)
    known = {entry.fname for entry in manager.fontManager.ttflist}
    new = [file for file in manager.findSystemFonts() if file not in known]
    for file in new:
        with suppress(OSError, RuntimeError):  # a font that matplotlib cannot read
            manager.fontManager.addfont(file)
    return bool(new)


def _files_by_family() -> dict[str, str]:
    """One file for each installed family: upright and of normal weight, where there is one."""
    manager = import_optional("matplotlib.font_manager", _NEEDED_BY)
    entries = sorted(
        manager.fontManager.ttflist,
        key=lambda entry: (entry.style != "normal", abs(int(entry.weight) - 400) if str(entry.weight).isdigit() else 0),
    )
    return {entry.name: entry.fname for entry in reversed(entries)}


def _drawn_by(file: str | None, characters: frozenset[str]) -> frozenset[str]:
    """Those of the characters that a font has; none for a font of pictures, as those of coloured emoji are."""
    if file is None or not characters:
        return frozenset()
    manager = import_optional("matplotlib.font_manager", _NEEDED_BY)
    try:
        font = manager.get_font(file)
        return frozenset(char for char in characters if font.scalable and font.get_char_index(ord(char)))
    except (OSError, RuntimeError):  # a font that matplotlib cannot read
        return frozenset()
