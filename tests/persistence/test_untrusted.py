"""JSON from anywhere is checked before it is parsed."""

import json

import pytest

from gpvi.persistence import untrusted


@pytest.mark.parametrize(
    "strings",
    [
        ["a"],
        ['w["0"]', "b\n[1,2]", "\\", '\\"', "", "é\u2028"],
        [f"w[{i},{i}]" for i in range(999)],
    ],
    ids=["one", "odd", "many"],
)
@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_lists_of_strings_are_read(strings, layout):
    content = json.dumps(strings, **layout).encode()
    assert untrusted.json_strings(content, len(strings)) == strings
    for wrong in (len(strings) - 1, len(strings) + 1, -1, 10**12):
        with pytest.raises(ValueError, match="strings"):
            untrusted.json_strings(content, wrong)


@pytest.mark.parametrize(
    "content",
    [b'["a",["b"]]', b'["a",1]', b'{"a":"b"}', b'"a","b"', b'["a""b"]', b'["a","b"', b'["a","b\\"]',
     b"[" + b"[]," * 10**6 + b"[]]", b'["a","b"]' + b" " * 99 + b'"c"'],
)  # fmt: skip
def test_anything_but_a_list_of_strings_is_refused_before_it_is_parsed(content, monkeypatch):
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(ValueError, match="strings"):
        untrusted.json_strings(content, 2)
