"""What a serving process keeps of the memory that requests give back, in a process of its own."""

import subprocess
import sys

import pytest

from chiasm.launch.memory import kept_bytes
from chiasm.settings.process import ALLOCATOR_VARIABLES

_BODIES = """
import resource
from chiasm.launch import memory

def num_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

memory.memory_limit_bytes = lambda: 2**34
memory.settle()
for _ in range(2):  # sixteen requests with 20 MB of pictures, and once more
    before = num_faults()
    bodies = [bytearray(20 * 10**6) for _ in range(16)]
    del bodies
    print(num_faults() - before)
"""


def faults(**variables):
    """Of the first bodies, and of those that come again."""
    environment = ALLOCATOR_VARIABLES | variables
    found = subprocess.run(
        [sys.executable, "-c", _BODIES], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return map(int, found.stdout.split())


def test_bodies_that_come_again_find_their_pages():
    first, again = faults()
    assert again < first / 10


def test_what_somebody_set_by_hand_is_kept_instead():
    first, again = faults(MALLOC_TRIM_THRESHOLD_=str(2**20))
    assert again > first / 2


@pytest.mark.parametrize(("limit_gib", "kept_mib"), [(0.25, 64), (2, 128), (8, 512), (64, 512)])
def test_where_there_is_little_memory_less_is_kept(limit_gib, kept_mib):
    assert kept_bytes(int(limit_gib * 2**30)) == kept_mib * 2**20
