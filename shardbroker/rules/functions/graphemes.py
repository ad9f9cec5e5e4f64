"""User-perceived characters (grapheme clusters), which EMQX counts, slices and reverses by."""

from shardbroker.rules.functions.libraries import library

__all__ = ["graphemes"]


def graphemes(text: str) -> str | list[str]:
    """Returns the characters of a text: itself where each is one code point."""
    if text.isascii() and "\r\n" not in text:
        return text
    found: list[str] = library("regex").findall(r"\X", text)
    return found
