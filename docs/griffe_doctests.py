"""What mkdocstrings reads docstrings with: doctests become examples, in which Markdown sees no quotations and links.

It is named in `mkdocs.yml`; griffe, which reads the sources for mkdocstrings, calls `on_object` for all that it finds.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"(?:^|(?<=\n))>>> (?:.+\n?)+")


def with_examples(text: str) -> str:
    """Puts each paragraph that is a doctest under the heading that griffe knows.

    >>> print(with_examples("Doubles.\\n\\n>>> 2 * 3\\n6"))
    Doubles.
    <BLANKLINE>
    Examples:
        >>> 2 * 3
        6
    """
    return _DOCTEST.sub(lambda found: "Examples:\n" + re.sub(r"(?m)^(?=.)", "    ", found[0]), text)


class Doctests(griffe.Extension):
    """Rewrites the docstring of each object before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_examples(obj.docstring.value)
