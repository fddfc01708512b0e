"""Downloads: without pooch, without a network, and with a wrong file."""

import sys

import pytest

from gpvi.errors import InputError, NotAvailableError, StorageError
from gpvi_paper.data import cifar10, download, mnist


def test_without_pooch_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(NotAvailableError, match=r"gpvi\[data\].*--data-dir"):
        download.fetch("mnist")


def test_every_file_of_the_reader_has_a_digest():
    assert set(download.SOURCES["mnist"].files) == {f"{name}.gz" for name in mnist.FILES}
    assert set(download.SOURCES["cifar10"].files) == {cifar10.ARCHIVE}


@pytest.mark.parametrize("fails", [OSError("no route"), ValueError("hash differs")])
def test_a_failed_download_says_what_to_do(monkeypatch, tmp_path, fails):
    class Pooch:
        @staticmethod
        def retrieve(*args, **options):
            raise fails

    monkeypatch.setitem(sys.modules, "pooch", Pooch)
    expected = InputError if isinstance(fails, OSError) else StorageError
    with pytest.raises(expected, match="--data-dir"):
        download.fetch("mnist", tmp_path)
