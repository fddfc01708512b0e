"""The progress line: its width, the time left, how it ends, and meters that fail."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpvi
from gpvi import progress
from gpvi.progress import WIDTH, LineMeter, NullMeter, Pace, SafeMeter, as_meter, duration


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self):
        return self.now


class Screen(io.StringIO):
    """Standard error of a terminal, or of a file."""

    def __init__(self, terminal=True):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    @property
    def lines(self):
        return [line.strip() for line in re.split(r"[\r\n]+", self.getvalue()) if line.strip()]


def terminal(monkeypatch):
    """A screen, from within a test: pytest puts its own in place before each."""
    shown = Screen()
    monkeypatch.setattr("sys.stderr", shown)
    return shown


def meter(**options):
    clock = Clock()
    return LineMeter(clock=clock, **options), clock


def test_a_run_that_ends_early(monkeypatch):
    screen = terminal(monkeypatch)
    line, clock = meter()
    line.start(7_500, "GPVI (a head of 2 coordinates, 6 spline couplings)")
    line.update(0, "searching for a start")
    clock.now = 10.0
    line.update(100, "elbo 1.5")
    clock.now = 12.0
    line.update(500, "elbo 1.8")
    line.update(500, "judging the draws")
    clock.now = 13.0
    line.update(500, "done: the draws fit after 500 steps")
    line.close()
    assert screen.lines[1] == f"GPVI  {'─' * 16}  0/7,500  searching for a start"
    assert screen.lines[2] == f"GPVI  {'─' * 16}  100/7,500  elbo 1.5", "no pace yet"
    assert screen.lines[3] == f"GPVI  ━{'─' * 15}  500/7,500  elbo 1.8  35 s left"
    assert screen.lines[4] == f"GPVI  ━{'─' * 15}  500/7,500  judging the draws  35 s left"
    assert screen.lines[-1] == "GPVI: done: the draws fit after 500 steps (13 s)"


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.text(max_size=120),
    st.text(max_size=120),
    st.floats(0, 1e9),
)
def test_no_line_is_wider_than_the_screen(done, total, label, message, seconds):
    line, clock = meter()
    with pytest.MonkeyPatch.context() as patch:
        shown = Screen()
        patch.setattr("sys.stderr", shown)
        line.start(total, label)
        line.update(1, message)
        clock.now = seconds
        line.update(done, message)
        line.close()
    assert all(len(each) <= WIDTH for each in re.split(r"[\r\n]", shown.getvalue()))


def test_a_file_gets_the_end_alone(monkeypatch):
    file = Screen(terminal=False)
    monkeypatch.setattr("sys.stderr", file)
    line, _ = meter()
    line.start(10, "SVGD")
    line.update(5, "direction 1")
    line.update(10, "")
    line.close()
    assert file.getvalue() == "SVGD: 10/10 (0 s)\n"


def test_nothing_is_left_of_work_that_never_began_or_is_not_kept(monkeypatch):
    screen = terminal(monkeypatch)
    for keep, done in ((True, 0), (False, 7)):
        line, _ = meter(keep=keep, prefix="2/3")
        line.start(10, "SVGD")
        line.update(done, "failed")
        line.close()
        assert screen.getvalue().endswith(f"\r{' ' * WIDTH}\r")
        assert screen.lines[0].startswith("2/3 SVGD  ")


def test_a_notebook_rewrites_the_line(monkeypatch):
    class ZMQInteractiveShell:
        pass

    class IPython:
        get_ipython = staticmethod(ZMQInteractiveShell)

    shown = Screen(terminal=False)
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setitem(progress.sys.modules, "IPython", IPython)
    line, _ = meter()
    line.start(10, "SVGD")
    line.update(5, "half")
    assert "5/10  half" in shown.lines[-1]


def test_the_pace_of_work_that_begins_anew():
    pace = Pace()
    assert pace.left(10) is None
    for done, now in ((0, 0.0), (0, 5.0), (2, 6.0)):
        pace.note(done, now)
        assert pace.left(10) is None
    pace.note(4, 8.0)
    assert pace.left(10) == pytest.approx(6.0)
    pace.note(0, 20.0)
    assert pace.left(10) is None
    pace.note(1, 21.0)
    pace.note(2, 24.0)
    assert pace.left(10) == pytest.approx(24.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (99.0, "99 s"), (100.0, "2 min"), (5_900.0, "98 min"), (6_000.0, "1.7 h")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_what_progress_stands_for():
    assert isinstance(as_meter(False), NullMeter)
    assert isinstance(as_meter(True), SafeMeter)
    assert isinstance(LineMeter(), gpvi.progress.Meter)


def test_a_context_closes_whatever_happens():
    calls = []

    class Kept(NullMeter):
        def start(self, total, label):
            calls.append((total, label))

        def close(self):
            calls.append("close")

    with pytest.raises(KeyError), progress.shown(Kept(), 3, "work"):
        raise KeyError
    assert calls == [(3, "work"), "close"]
