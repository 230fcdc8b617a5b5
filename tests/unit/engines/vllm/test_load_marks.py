"""What a worker says of a load that failed, and that the scheduler sees it at once."""

import resource

import pytest

from chiasm.engines.vllm.ec.engine_folder import OwnedFolder, engine_folder
from chiasm.engines.vllm.ec.load_marks import LoadMarks, marks_folder


@pytest.fixture
def folder(tmp_path):
    owned = OwnedFolder(marks_folder(str(tmp_path), "engine/0"))
    yield owned.path
    owned.close()


def test_a_mark_is_seen_until_it_is_cleared(folder):
    worker, scheduler = LoadMarks(folder), LoadMarks(folder)
    worker.set("a/../picture")
    worker.set("a/../picture")  # by another worker of the engine
    assert scheduler.is_set("a/../picture")
    assert not scheduler.is_set("another")
    scheduler.clear("a/../picture")
    scheduler.clear("a/../picture")
    assert not scheduler.is_set("a/../picture")


def test_a_mark_can_be_set_when_no_file_can_be_opened(folder):
    marks = LoadMarks(folder)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        marks.set("picture")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert marks.is_set("picture")


def test_without_the_folder_nothing_is_said_and_nothing_is_raised(tmp_path):
    marks = LoadMarks(tmp_path / "gone")
    marks.set("picture")
    assert not marks.is_set("picture")
    marks.clear("picture")


def test_the_folder_is_not_the_one_of_the_engines_receipts(tmp_path):
    assert marks_folder(str(tmp_path), "engine/0") != engine_folder(str(tmp_path), "engine/0")
