"""`glimmer`: commands beside the workflow.

`glimmer compare A.jsonl B.jsonl` and `glimmer why [arguments of snakemake]`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glimmer.errors import DataError, GlimmerError

# Fewer do not reach the ends of a 95 % interval; the schema's least of report.resamples.
MIN_RESAMPLES = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 after an error (one message on stderr), 2 for wrong usage."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.run is not _why:
        options.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    try:
        status = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except GlimmerError as error:
        print(f"glimmer: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="glimmer", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="command")
    compare = commands.add_parser(
        "compare",
        help="two evaluations of the same questions, paired",
        description=(
            "Paired comparison of two record files (JSONL, one question a line; at least id and "
            "exact_match; sample logs of lm-evaluation-harness too). See docs/evaluation.md."
        ),
    )
    compare.add_argument("before", type=Path, metavar="A.jsonl")
    compare.add_argument("after", type=Path, metavar="B.jsonl")
    compare.add_argument("--metric", help="field that says right or wrong (exact_match)")
    compare.add_argument("--filter", help="filter of an lm-evaluation-harness log")
    compare.add_argument(
        "--resamples", type=_resamples, default=10_000, help="of the bootstrap, at least 100"
    )
    compare.add_argument("--seed", type=_whole, default=0, help="of the bootstrap")
    compare.add_argument(
        "--repeats",
        type=Path,
        nargs=2,
        metavar=("A.repeats.jsonl", "B.repeats.jsonl"),
        help="further passes of both evaluations, which give the noise floor",
    )
    compare.add_argument("--out", type=Path, help="write everything as JSON here")
    compare.set_defaults(run=_compare, parser=compare)
    why = commands.add_parser(
        "why",
        help="what would run, and what changed, one line a job",
        description=(
            "Every argument is one of snakemake's: targets, --configfile, --workflow-profile … "
            "Nothing is run."
        ),
    )
    why.set_defaults(run=_why)
    return parser


def _whole(text: str) -> int:
    return _at_least(0, text)


def _resamples(text: str) -> int:
    return _at_least(MIN_RESAMPLES, text)


def _at_least(least: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or value < least:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from {least}")
    return value


def _why(options: argparse.Namespace) -> int:
    from glimmer.provenance.why import why

    lines = why(options.rest)
    print("\n".join(lines) if lines else "Nothing to be done: every stage is up to date.")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from glimmer.files import disk_errors, write_json
    from glimmer.heldout.imports import (
        check_file,
        check_questions,
        check_samples,
        differing_hashes,
        read_any,
    )
    from glimmer.heldout.paired import add_noise, verdict
    from glimmer.heldout.report_words import noise_sentence

    inputs = [options.before, options.after, *(options.repeats or ())]
    for path in inputs:
        check_file(path)
        if options.out is not None and _same_file(path, options.out):
            raise DataError(
                f"{options.out}: found one of the files to compare, expected another one to write "
                "to. Correct --out."
            )
    old, new = (
        read_any(path, metric=options.metric, filter=options.filter)
        for path in (options.before, options.after)
    )
    check_questions(old, new, options.before, options.after)
    check_samples(old, new, options.before, options.after)
    found = verdict(old, new, seed=options.seed, resamples=options.resamples)
    if options.repeats is not None:
        add_noise(found["measured"], old, new, options.repeats)
    differing = differing_hashes(old, new)
    found["measured_on"] |= {
        "before": str(options.before),
        "after": str(options.after),
        "differing": differing,
    }
    if options.out is not None:
        with disk_errors(options.out, "writing"):
            write_json(options.out, found)
    print("\n".join(_table(found["measured"])))
    print(noise_sentence(found["measured"], setting="--repeats"))
    for name, count in differing.items():
        print(f"note: {name} differ for {count} of {len(old)} questions")
    return 0


def _same_file(path: Path, other: Path) -> bool:
    return other.exists() and path.samefile(other)


def _table(measured: dict[str, Any]) -> list[str]:
    """The result in a few lines of text."""
    counts = measured["table"]
    low, high = (100 * bound for bound in measured["difference"]["ci95"])
    able = measured["power"]["detectable_difference"]
    lines = [f"{'':<8}{'right':>7}{'rate':>9}   95 % Wilson"]
    for name in ("before", "after"):
        side = measured[name]
        bounds = "–".join(f"{100 * bound:.1f}" for bound in side["ci95"])
        lines.append(
            f"{name:<8}{side['correct']:>7}{100 * side['exact_match']:>7.1f} %   {bounds} %"
        )
    lines += [
        f"{measured['questions']} questions: {counts['gained']} gained, {counts['lost']} lost, "
        f"{counts['both_right']} right and {counts['both_wrong']} wrong both times",
        f"difference {100 * measured['difference']['mean']:+.1f} points [{low:+.1f}, {high:+.1f}] "
        "(95 % paired bootstrap)",
        f"exact McNemar p = {measured['mcnemar_p']:.2g}, mid-p = {measured['mcnemar_midp']:.2g}",
        *(
            f"pass@{k} {100 * row['before']:.1f} → {100 * row['after']:.1f} %, difference "
            f"{100 * row['difference']['mean']:+.1f} points"
            for k, row in measured.get("samples", {"pass_at": {}})["pass_at"].items()
        ),
        "detectable with 80 % power: "
        + ("nothing" if able is None else f"{100 * able:.1f} points"),
    ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
