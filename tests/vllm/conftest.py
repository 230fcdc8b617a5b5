"""The servers that tests share, and the embedded engine, whose answers vLLM's are compared with."""

from pathlib import Path

import pytest

from tests.vllm.crews import (
    ORDER,
    Crews,
    aggregated_crew,
    disaggregated_crew,
    fleet_crew,
    in_order,
    split_crew,
    towerless_crew,
)
from tests.vllm.gateways import gateway
from tests.vllm.servers import CHEAP_START

_FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items):
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(Path(__file__).parent)]
    for place, item in zip(places, in_order([items[place] for place in places]), strict=True):
        items[place] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Servers of a test that failed may be dead or know its pictures: the next test, its rerun first, gets new ones."""
    report = yield
    item.stash[_FAILED] = report.failed or (call.when != "setup" and item.stash[_FAILED])
    if call.when == "teardown" and item.stash[_FAILED] and "crews" in item.funcargs:
        for name in set(ORDER).intersection(item.fixturenames):
            item.funcargs["crews"].dismiss(name)
    return report


@pytest.fixture(autouse=True)
def restored_loggers():
    """Not here: crews hear what their servers print from one test to the next."""


@pytest.fixture(scope="session")
def embedded():
    with gateway() as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def cheap_start():
    """Also of servers that Chiasm starts, which inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CHEAP_START.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def crews(cheap_start):
    made = Crews()
    yield made
    made.close()


@pytest.fixture
def aggregated(crews):
    return aggregated_crew(crews)


@pytest.fixture
def fleet(crews, tmp_path_factory):
    return fleet_crew(crews, tmp_path_factory.mktemp)


@pytest.fixture
def split(crews, tmp_path_factory):
    return split_crew(crews, tmp_path_factory.mktemp)


@pytest.fixture
def towerless(crews, tmp_path_factory):
    return towerless_crew(crews, tmp_path_factory.mktemp)


@pytest.fixture(scope="session")
def adapters(tmp_path_factory):
    """A folder of adapters of the packaged model."""
    from tests.vllm.adapters import write_adapters

    return write_adapters(tmp_path_factory.mktemp("adapters"))


@pytest.fixture
def disaggregated(crews, adapters):
    from tests.vllm.adapters import options

    return disaggregated_crew(crews, lambda: options(adapters))
