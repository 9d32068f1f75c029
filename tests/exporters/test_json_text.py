"""The text of plain data reads back as json.dumps writes it, with a line for each entry of the outer lists."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from autoshard.exporters.json_text import json_text

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
KEYS = st.text(max_size=3) | st.integers() | st.booleans() | st.none()
DATA = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


@given(DATA)
def test_it_reads_back_as_the_same(data) -> None:
    assert json.loads(json_text(data)) == json.loads(json.dumps(data))


def test_each_entry_has_a_line() -> None:
    rows = [{"name": f"n{i}", "of": [[i], {"x": i}]} for i in range(5)]
    text = json_text({"rows": rows, "empty": [], "sizes": [1, 2], "none": {}})
    assert [line.strip(" ,") for line in text.splitlines()][2:7] == [json.dumps(row) for row in rows]
    assert len(text.splitlines()) == 12
