"""Before any test module imports torch or one of TitanRL's submodules."""

import os
import signal

# A shell starts background commands with SIGINT ignored, and tests send it to their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # two workers share the cores

import pytest  # noqa: E402

from glimmer.titanrl import ensure_importable  # noqa: E402

ensure_importable()

from tests.workflow.copies import finished, workflow  # noqa: E402, F401


@pytest.hookimpl(tryfirst=True)  # before the plugin reads the groups
def pytest_collection_modifyitems(items):
    """Tests of one folder share models, indexes and runs: they stay with one worker."""
    for item in items:
        folder = item.path.parent.name
        item.add_marker(
            pytest.mark.xdist_group("workflow" if folder in ("workflow", "faults") else "units")
        )
