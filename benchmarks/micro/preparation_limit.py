"""What preparing a picture takes beside copying what comes out, and what of it no code could save.

    python -m benchmarks.micro.preparation_limit --json FILE

An exact resize multiplies every sample by a weight of 22 bits for each output pixel that it is near to. The processor's
fastest exact way is three products of bytes, four of them added by one instruction (AVX-512 with VNNI), or two products
of 16-bit numbers (AVX2). "Products alone" is how long these take from registers, nothing loaded, chosen, rounded or
stored; "read once" is a copy of the source's bytes into the processor; "the first of its size" makes its
weights anew, which the others find kept. CPU time, least of many turns. Needs a C compiler and AVX2.
"""

import argparse
import ctypes
import json
import math
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.media import TOKEN_PIXELS
from chiasm.media.kernels import _native
from chiasm.media.kernels.registry import kernels
from chiasm.media.prepare.qwen2_vl import Qwen2VLPreparer

SOURCE = """
#include <immintrin.h>
#include <stdint.h>
#ifdef __AVX512VNNI__
/* Three digits of 64 products each, for 16 sums at a time, as independent of each other as the processor likes. */
int32_t products(long count) {
    __m512i sums[12], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (int i = 0; i < 12; i++) sums[i] = _mm512_setzero_si512();
    for (long n = 0; n < count; n += 4 * 64) {
        for (int i = 0; i < 12; i++) {
            __asm__ volatile("" : "+v"(a));
            sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
        }
    }
    for (int i = 1; i < 12; i++) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
    return _mm512_reduce_add_epi32(sums[0]);
}
#else
/* Two halves of 16 products, for 8 sums at a time, in the same way. */
int32_t products(long count) {
    __m256i sums[8], a = _mm256_set1_epi16(3), b = _mm256_set1_epi16(5), c = _mm256_set1_epi16(7);
    for (int i = 0; i < 8; i++) sums[i] = _mm256_setzero_si256();
    for (long n = 0; n < count; n += 4 * 16) {
        for (int i = 0; i < 4; i++) {
            __asm__ volatile("" : "+x"(a));
            sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(a, b));
            sums[i + 4] = _mm256_add_epi32(sums[i + 4], _mm256_madd_epi16(a, c));
        }
    }
    for (int i = 1; i < 8; i++) sums[0] = _mm256_add_epi32(sums[0], sums[i]);
    return _mm256_extract_epi32(sums[0], 0);
}
#endif
"""
FLAGS = {"avx512": ["-mavx512f", "-mavx512bw", "-mavx512vnni"], "avx2": ["-mavx2"]}
CUBIC_REACH = 2.0


def least_ms(work: Callable[[], Any], turns: int = 40, before: Callable[[], Any] = lambda: None) -> float:
    work()
    found = []
    for _ in range(turns):
        before()
        started = time.process_time_ns()
        work()
        found.append((time.process_time_ns() - started) / 1e6)
    return min(found)


def forget_weights() -> None:
    """Resize between other sizes, so that the weights kept for the next picture are theirs."""
    for side in range(5, 15):
        kernels().resize(np.zeros((side, side, 3), np.uint8), (3, 4), 3)


def products(way: str) -> Callable[[int], int]:
    folder = Path(tempfile.mkdtemp())
    (folder / "products.c").write_text(SOURCE)
    out = folder / "products.so"
    subprocess.run(["cc", "-O3", *FLAGS[way], "-shared", "-fPIC", "-o", out, folder / "products.c"], check=True)
    function = ctypes.CDLL(str(out)).products
    function.argtypes = [ctypes.c_long]
    return function  # type: ignore[no-any-return]


def num_products(size: tuple[int, int], to: tuple[int, int]) -> int:
    """Weights times samples of both passes of a bicubic reduction, across first."""

    def taps(length: int, wanted: int) -> int:
        return math.floor(2 * CUBIC_REACH * max(length / wanted, 1.0))

    across = taps(size[0], to[0]) * to[0] * size[1]
    down = taps(size[1], to[1]) * to[1] * to[0]
    return 3 * (across + down)


def cell(size: tuple[int, int], tokens: int, multiply: Callable[[int], int]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        preparer = Qwen2VLPreparer(Path(folder), {"max_pixels": tokens * TOKEN_PIXELS}, {})
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    to = preparer.plan(*size).resized
    resized = kernels().resize(pixels, to, 3)
    prepared = preparer.prepare(resized)
    floats, out = prepared.pixel_values(), np.empty_like(prepared.pixel_values())
    products_needed = num_products(size, to)
    return {
        "prepared to floats, ms": least_ms(lambda: preparer.prepare(pixels).pixel_values()),
        "the first of its size, ms": least_ms(lambda: preparer.prepare(pixels).pixel_values(), before=forget_weights),
        "of it resize, ms": least_ms(lambda: kernels().resize(pixels, to, 3)),
        "million products": products_needed / 1e6,
        "products alone, ms": least_ms(lambda: multiply(products_needed)),
        "read once, ms": least_ms(pixels.max),
        "already of this size, to floats, ms": least_ms(lambda: preparer.prepare(resized).pixel_values()),
        "already of this size, to bytes, ms": least_ms(lambda: preparer.prepare(resized)),
        "memcpy of the floats, ms": least_ms(lambda: np.copyto(out, floats)),
        "memcpy of the floats into new memory, ms": least_ms(floats.copy),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    way = _native.names()[0]
    multiply = products(way)
    found: dict[str, Any] = {"machine": machine.describe(), "loops": way, "cells": {}}
    for size in ((640, 480), (1920, 1080), (4000, 3000)):
        for tokens in (256, 1024):
            name = f"{size[0]}x{size[1]}, {tokens} tokens"
            found["cells"][name] = one = cell(size, tokens, multiply)
            copy = one["memcpy of the floats, ms"]
            print(name)
            for what, value in one.items():
                print(f"  {what}: {value:.3f}" + (f", {value / copy:.1f} times memcpy" if what.endswith("ms") else ""))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
