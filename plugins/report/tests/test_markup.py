"""Nothing from a dataset can become markup."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_report.page.markup import element, escape

HOSTILE = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(
            ["<", ">", '"', "'", "&", "/", "script", "<!--", "-->", "]]>", "</", "=", "\0"]
        )
    ).map("".join),
)


class Collector(HTMLParser):
    """Notes tags, attributes and text."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl):
        raise AssertionError(f"a declaration: {decl}")


def parse(html):
    parser = Collector()
    parser.feed(html)
    parser.close()
    return parser


@given(HOSTILE)
def test_text_stays_text(text):
    parsed = parse(element("p", text))
    assert parsed.tags == ["p"]
    assert parsed.attributes == []


@given(
    st.text(st.characters(min_codepoint=32, max_codepoint=0xD7FF, exclude_categories=["Cc", "Cf"]))
)
def test_text_arrives_unchanged(text):
    assert parse(element("p", text)).text == text


def test_marks_that_turn_text_round_are_spelt_out():
    assert escape("a\u202eb\u2066c") == "a⟨202e⟩b⟨2066⟩c"


@given(HOSTILE)
def test_values_of_attributes_stay_values(text):
    parsed = parse(element("p", data_tip=text))
    assert parsed.tags == ["p"]
    assert [name for name, _ in parsed.attributes] == ["data-tip"]


@pytest.mark.parametrize("text", ["a\0b", "a\x1bb", "a\x9bb", "a\ud800b"])
def test_what_is_no_text_is_replaced(text):
    assert escape(text) == "a\ufffdb"
    assert escape("line\n\ttab") == "line\n\ttab"
