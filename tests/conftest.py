"""Before any test module imports torch or one of TitanRL's submodules."""

import os
import signal
from pathlib import Path

# A shell starts background commands with SIGINT ignored, and tests send it to their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # two workers share the cores

import pytest  # noqa: E402

from glimmer.titanrl import ensure_importable  # noqa: E402

ensure_importable()

from tests import messages  # noqa: E402
from tests.workflow.copies import finished, workflow  # noqa: E402, F401

messages.record()

TESTS = Path(__file__).parent


# A file stays with one worker, as its tests share models and indexes: `--dist loadfile`, since of
# xdist 3.8's groups pytest 9.2 tells nothing. Files are taken in this order, so that the workers
# end together: first the one that makes the finished run, and beside it one that needs none; last
# those that need it.
FIRST = ["workflow/test_bad_input.py", "training/titan/test_fsdp.py"]
LAST = ("workflow", "faults")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    def place(item):
        name = item.path.relative_to(TESTS).as_posix()
        return FIRST.index(name) if name in FIRST else len(FIRST) + name.startswith(LAST)

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Every message that a test brings about stands in docs/troubleshooting.md."""
    messages.said.clear()
    result = yield
    unlisted = [text for text in sorted(messages.said) if not messages.is_listed(text)]
    assert not unlisted, f"not in docs/troubleshooting.md: {unlisted}"
    return result
