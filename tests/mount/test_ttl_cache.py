"""Answers that nobody waits for twice."""

from __future__ import annotations

import threading
import time

import pytest

from himach.mount import tree
from himach.mount.tree import TtlCache

from .mounts import until


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(tree, "RENEWAL_SECONDS", 0.01)
    monkeypatch.setattr(tree, "TTL_SECONDS", 0.0)


class Question:
    def __init__(self):
        self.count = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self):
        self.go_on.wait()
        self.count += 1
        return self.count


def test_an_answer_is_asked_for_again_when_it_is_old(monkeypatch):
    question = Question()
    answer = TtlCache(question, 0)
    monkeypatch.setattr(tree, "TTL_SECONDS", 1000.0)
    assert [answer.get() for _ in range(5)] == [1] * 5
    monkeypatch.setattr(tree, "TTL_SECONDS", 0.0)
    other = TtlCache(question, 0)
    assert other.get() == 2
    until(lambda: other.get() > 2, "a new answer")


def test_who_has_an_answer_does_not_wait_for_a_new_one():
    question = Question()
    answer = TtlCache(question, 0)
    assert answer.get() == 1
    question.go_on.clear()
    begun = time.monotonic()
    assert [answer.get() for _ in range(20)] == [1] * 20
    assert time.monotonic() < begun + 30
    assert question.count == 1
    question.go_on.set()
    until(lambda: answer.get() > 1, "the new answer")


def test_the_first_answer_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(tree, "FIRST_SECONDS", 0.05)
    question = Question()
    question.go_on.clear()
    answer = TtlCache(question, 0)
    assert answer.get() == 0
    monkeypatch.setattr(tree, "FIRST_SECONDS", 1000.0)
    assert answer.get() == 0
    question.go_on.set()
    until(lambda: answer.get() > 0, "the answer")


def test_a_question_that_fails_is_asked_again():
    calls = []

    def ask():
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("unforeseen")
        return "answer"

    question = TtlCache(ask, "none yet")
    assert question.get() == "none yet"
    until(lambda: question.get() == "answer", "an answer")
