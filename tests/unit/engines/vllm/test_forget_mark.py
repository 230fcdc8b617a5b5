"""What a worker says of forgetting, and that the scheduler sees it."""

import pytest

from chiasm.engines.vllm.ec.engine_folder import OwnedFolder, engine_folder
from chiasm.engines.vllm.ec.forget_mark import ForgetMark, mark_folder


@pytest.fixture
def folder(tmp_path):
    owned = OwnedFolder(mark_folder(str(tmp_path), "engine/0"))
    yield owned.path
    owned.close()


def test_a_mark_is_seen_until_it_is_cleared(folder):
    worker, scheduler = ForgetMark(folder), ForgetMark(folder)
    assert not scheduler.is_set()
    worker.set()
    worker.set()  # by another worker of the engine
    assert scheduler.is_set()
    scheduler.clear()
    scheduler.clear()
    assert not scheduler.is_set()


def test_without_the_folder_nothing_is_said_and_nothing_is_raised(tmp_path):
    mark = ForgetMark(tmp_path / "gone")
    mark.set()
    assert not mark.is_set()
    mark.clear()


def test_the_folder_is_not_the_one_of_the_engines_receipts(tmp_path):
    assert mark_folder(str(tmp_path), "engine/0") != engine_folder(str(tmp_path), "engine/0")
