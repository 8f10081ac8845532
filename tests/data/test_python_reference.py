from __future__ import annotations

import os
import re
import sys
from functools import cache

import pytest

from tests import processes
from zerokit.data import python_reference
from zerokit.data.definitions import Definition, definitions, grammar_symbols
from zerokit.data.prose import answer_from, is_clean, paragraphs, plain, sentences, stands_alone
from zerokit.data.python_reference import Pair

corpus = cache(python_reference.corpus)
questions = cache(python_reference.questions)


def term(pair: Pair) -> str:
    match = re.fullmatch(
        r'Question: What (?:does|is) ((?:the debugger command )?".+") .+\?\nAnswer:', pair["prompt"]
    )
    match = match or re.fullmatch(r'Question: What is (".+")\?\nAnswer:', pair["prompt"])
    assert match is not None, pair["prompt"]
    return match[1]


def test_there_is_enough_text_for_a_small_training() -> None:
    text = corpus()
    assert len(text.train) >= 150
    assert sum(map(len, text.train)) > 300_000
    share = len(text.held_out) / (len(text.train) + len(text.held_out))
    assert share == pytest.approx(0.05, abs=0.01)
    assert all(200 <= len(document) < 20_000 for document in text.train + text.held_out)


def test_no_paragraph_of_a_held_out_document_is_in_training() -> None:
    def long_paragraphs(documents: list[str]) -> set[str]:
        return {p.key for document in documents for p in paragraphs(document) if len(p.key) >= 40}

    text = corpus()
    assert long_paragraphs(text.held_out)
    assert not long_paragraphs(text.held_out) & long_paragraphs(text.train)


def test_documents_do_not_repeat_each_other() -> None:
    text = corpus()
    keys = [p.key for document in text.train for p in paragraphs(document) if len(p.key) >= 40]
    assert len(keys) == len(set(keys))


def test_there_are_enough_questions() -> None:
    asked = questions()
    assert len(asked.train) >= 500
    assert 0.03 < len(asked.held_out) / len(asked.train) < 0.09
    terms = [term(pair) for pair in asked.train + asked.held_out]
    assert len(set(terms)) >= 300
    assert max(terms.count(one) for one in set(terms)) <= 2


def test_every_pair_is_a_question_and_a_short_answer_in_whole_sentences() -> None:
    asked = questions()
    for pair in asked.train + asked.held_out:
        assert pair.keys() == {"prompt", "completion"}
        assert pair["prompt"].startswith("Question: What ")
        assert pair["prompt"].endswith("?\nAnswer:")
        answer = pair["completion"]
        assert answer[0] == " "
        assert 25 <= len(answer.strip()) <= 400
        assert "\n" not in answer
        assert answer.endswith((".", '."', ".)"))
        assert answer.count('"') % 2 == 0
        assert answer.count("(") == answer.count(")")
        assert not re.search(r"\*{3}|={3}|-{3}|::=|>>>|\[\d\]|:$|  ", answer.strip())
        assert all(is_clean(sentence) for sentence in sentences(answer))


def test_nothing_held_out_is_answered_in_training() -> None:
    asked = questions()
    assert not {term(pair) for pair in asked.held_out} & {term(pair) for pair in asked.train}
    trained = {sentence for pair in asked.train for sentence in sentences(pair["completion"])}
    assert not trained & {sentence for pair in asked.held_out for sentence in sentences(pair["completion"])}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ('"lambda" mean', "anonymous functions"),
        ('"while" mean', "repeated execution"),
        ('"str.upper" do', "uppercase"),
        ('"__init__" mean', "instance has been created"),
        ('"not in" mean', "membership"),
        ('the debugger command "whatis" do', "type of"),
    ],
)
def test_well_known_terms_have_their_meaning(asked: str, said: str) -> None:
    both = questions()
    prompt = f"Question: What does {asked}?\nAnswer:"
    answers = [pair["completion"] for pair in both.train + both.held_out if pair["prompt"] == prompt]
    assert len(answers) == 1
    assert said in answers[0]


def test_every_process_makes_the_same_lists() -> None:
    code = "from zerokit.data.python_reference import corpus, questions; print((corpus(), questions()))"
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    printed = processes.checked([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed})
    assert printed == f"{(corpus(), questions())}\n"


def test_what_is_returned_is_the_callers_own() -> None:
    for make, first in ((python_reference.corpus, corpus()), (python_reference.questions, questions())):
        again = make()
        assert again == first
        again.train.clear()
        again.held_out[:] = [type(one)() for one in again.held_out]
        assert make() == first


REFERENCE = """
The "frob" statement
********************

   frob_stmt ::= "frob" target

"frob" may only occur in a loop. [1]

It frobs its target (see section Targets).  Other targets are left
alone.

Widgets
*******

A widget is a *thing* that one can frob.  See Frobbing for more.  The
"frob_stmt" expression is not a term.

object.__frob__(self)
object.__unfrob__(self)

   Called to frob the object.  Should return nothing but a
   built-in object:

      frob()

class dict(mapping)

   Return a dictionary.

   clear()

      Remove all that is in the dictionary.

   len(d)

      Return how many items d has.

Gadgets
   These represent an endless supply of gadgets, e.g. gears.

+--------------+-------------------------------------------+
| widget.size  | The size of the widget, counted in frobs. |
+--------------+-------------------------------------------+
"""


def test_definitions_are_recognised_by_their_layout() -> None:
    found = list(definitions("widgets", REFERENCE, grammar_symbols(REFERENCE)))
    by_term = {definition.term: definition.answer for definition in reversed(found)}
    assert by_term == {
        "frob": 'The "frob" statement frobs its target. Other targets are left alone.',
        "Widgets": "A widget is a thing that one can frob.",
        "widget": "A widget is a thing that one can frob.",
        "__frob__": "Called to frob the object. Should return nothing but a built-in object.",
        "__unfrob__": "Called to frob the object. Should return nothing but a built-in object.",
        "dict.clear": "Remove all that is in the dictionary.",
        "Gadgets": "These represent an endless supply of gadgets, e.g. gears.",
        "widget.size": "The size of the widget, counted in frobs.",
    }


def test_debugger_commands_are_asked_for_by_their_full_name() -> None:
    text = "h(elp) [command]\n\n   Print the list of commands there are.\n"
    assert list(definitions("debugger", text, frozenset())) == [
        Definition("help", "Print the list of commands there are.", "command")
    ]


def test_sentences_end_where_they_end() -> None:
    text = 'Use "a. B" or e.g. Another thing (as in C. Or so). *This* is **two** [2].  Is it?'
    assert sentences(text) == [
        'Use "a. B" or e.g. Another thing (as in C. Or so).',
        "This is two.",
        "Is it?",
    ]


def test_markup_goes_and_code_stays() -> None:
    assert plain('the *self* of "f(*args)",\n  a built-\n  in \u2018name\u2019') == (
        "the self of \"f(*args)\", a built-in 'name'"
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "See section Calls.",
        "The following rules hold.",
        "It has been said above.",
        "An unfinished one:",
        'A broken "quotation.',
        "stmt ::= expression.",
    ],
)
def test_what_leans_on_the_page_around_it_is_no_answer(sentence: str) -> None:
    assert not is_clean(sentence)
    assert answer_from([sentence]) is None


def test_an_answer_does_not_open_with_what_refers_back() -> None:
    assert is_clean("However, it may be returned from a function.")
    assert not stands_alone("However, it may be returned from a function.")


def test_an_answer_keeps_whole_sentences_within_its_limits() -> None:
    said = ["A first sentence of some length.", "A second one.", "See there.", "A fourth one."]
    assert answer_from(said) == "A first sentence of some length. A second one."
    assert answer_from(said, most_chars=40) == "A first sentence of some length."
    assert answer_from(["Short."]) is None
