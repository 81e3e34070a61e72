"""One model, many threads; many calls, no leak; processes."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import qbert

TEXTS = ["the path to the lake is frozen", "deep mud up to the chapel", "the road is dry", "fresh snow " * 30]


def test_sixteen_threads_on_one_model(classifier: qbert.Model) -> None:
    expected = [classifier.predict(text) for text in TEXTS]
    vectors = classifier.embed(TEXTS)

    def ask(number: int) -> bool:
        for turn in range(50):
            which = (number + turn) % len(TEXTS)
            if classifier.predict(TEXTS[which]) != expected[which]:
                return False
            if turn % 10 == 0 and not np.array_equal(classifier.embed(TEXTS), vectors):
                return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(16)))


def test_the_lock_is_released_while_a_model_computes(classifier: qbert.Model) -> None:
    texts = ["the path to the lake is frozen " * 20] * 256
    counted, is_done = 0, threading.Event()

    def compute() -> None:
        classifier.embed(texts)
        is_done.set()

    thread = threading.Thread(target=compute)
    thread.start()
    while not is_done.wait(0.0005):
        counted += 1
    thread.join()
    assert counted >= 3, "this thread went on while the other computed"


def resident() -> int:
    """Bytes of memory in use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_many_calls_leave_no_memory_behind(classifier: qbert.Model) -> None:
    def calls(count: int) -> None:
        for number in range(count):
            classifier(TEXTS[number % 3])
            if number % 20 == 0:
                classifier.embed(TEXTS)
                with pytest.raises(qbert.InputError):
                    classifier(("a", "pair"))

    calls(1000)
    before = resident()
    calls(5000)
    assert resident() - before < 1 << 20


def answer(path: str, text: str) -> object:
    return qbert.load(path, threads=2).predict(text)


def test_other_processes_answer_the_same(classifier: qbert.Model) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        found = pool.starmap(answer, [(classifier.path, text) for text in TEXTS])
    assert found == [classifier.predict(text) for text in TEXTS]
