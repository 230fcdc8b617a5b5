"""What a serving process keeps of the memory that requests give back, in a process of its own."""

import subprocess
import sys

from chiasm.settings.process import ALLOCATOR_VARIABLES

_BODIES = """
import resource
from chiasm.launch.memory import settle

def num_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

settle()
for _ in range(2):  # sixteen requests with 20 MB of pictures, and once more
    before = num_faults()
    bodies = [bytearray(20 * 10**6) for _ in range(16)]
    del bodies
    print(num_faults() - before)
"""


def test_bodies_that_come_again_find_their_pages():
    found = subprocess.run(
        [sys.executable, "-c", _BODIES], env=ALLOCATOR_VARIABLES, capture_output=True, text=True, check=True, timeout=60
    )
    first, again = map(int, found.stdout.split())
    assert again < first / 10
