"""Feed damaged media to the parsers, for as long as wanted; `tests/fuzz` runs the same targets for seconds.

    python tools/fuzz_media.py --minutes 30
    python tools/fuzz_media.py --target png --minutes 5
    python tools/fuzz_media.py --coverage --minutes 5
    python tools/fuzz_media.py --target header --atheris -- -max_total_time=600 -print_final_stats=1

An input that fails is written to the folder of --findings. With --atheris (pip install atheris), inputs are grown by
what code they reach, which libFuzzer prints as cov (branches taken) and ft; arguments after -- are libFuzzer's. With
--coverage (pip install coverage), it says which lines and branches of the parsers the inputs reached.
"""

import argparse
import hashlib
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
PARSERS = ("picture/*", "video/container.py", "video/header.py", "video/frames.py", "video/rotation.py", "audio/*",
           "data_url.py", "fetch/policy.py", "fetch/addresses.py")  # fmt: skip


def run(target: Callable[[bytes], None], corpus: list[bytes], seconds: float, findings: Path) -> tuple[int, int, float]:
    """Return executions, failures and the longest time of one input."""
    from tests.fuzz.corpus import mutated  # noqa: PLC0415 - needs the path above

    dice, until_s = random.Random(), time.monotonic() + seconds  # noqa: S311 - any dice will do
    count, failed, slowest_s = 0, 0, 0.0
    while time.monotonic() < until_s:
        data, started = mutated(dice.choice(corpus), dice), time.perf_counter()
        try:
            target(data)
        except Exception:  # noqa: BLE001 - the border: this is what is looked for
            failed += 1
            findings.mkdir(parents=True, exist_ok=True)
            path = findings / hashlib.sha256(data).hexdigest()[:16]
            path.write_bytes(data)
            print(f"{path}\n{traceback.format_exc()}", file=sys.stderr)
        count += 1
        slowest_s = max(slowest_s, time.perf_counter() - started)
    return count, failed, slowest_s


def run_atheris(name: str, rest: list[str]) -> None:
    """Hand over to libFuzzer, which does not return."""
    import atheris  # noqa: PLC0415 - no dependency of anything else

    with atheris.instrument_imports(include=["chiasm.media"]):
        from tests.fuzz.corpus import seeds  # noqa: PLC0415
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415
    folder = Path(tempfile.mkdtemp(prefix="corpus-"))
    for number, seed in enumerate(seeds(name)):
        (folder / str(number)).write_bytes(seed)
    atheris.Setup([sys.argv[0], str(folder), *rest], TARGETS[name])
    atheris.Fuzz()


def run_covered(wanted: str | None, minutes: float, findings: Path) -> int:
    """Fuzz as `run_all`, then print which lines and branches of the parsers were reached."""
    import coverage  # noqa: PLC0415 - no dependency of anything else

    measuring = coverage.Coverage(data_file=None, branch=True, source_pkgs=["chiasm.media"])
    with measuring.collect():  # from before the parsers are imported
        failures = run_all(wanted, minutes, findings)
    measuring.report(include=[f"*/chiasm/media/{part}" for part in PARSERS], show_missing=True, sort="name")
    return failures


def run_all(wanted: str | None, minutes: float, findings: Path) -> int:
    """Fuzz one target, or all for an equal share of the time, seeds first. Returns the number of failures."""
    from tests.fuzz.corpus import seeds  # noqa: PLC0415
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415

    names, failures = [wanted] if wanted else list(TARGETS), 0
    for name in names:
        corpus = seeds(name)
        for seed in corpus:
            TARGETS[name](seed)
        count, failed, slowest_s = run(TARGETS[name], corpus, minutes * 60 / len(names), findings)
        print(f"{name}: {count} inputs, {failed} failures, the slowest took {slowest_s:.3f} s", flush=True)
        failures += failed
    return failures


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="default: all of tests/fuzz/targets.py")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("--atheris", action="store_true")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("rest", nargs="*", help="for libFuzzer")
    options = parser.parse_args()
    if options.atheris:
        run_atheris(options.target or "header", options.rest)
    fuzz = run_covered if options.coverage else run_all
    raise SystemExit(fuzz(options.target, options.minutes, options.findings) > 0)


if __name__ == "__main__":
    main()
