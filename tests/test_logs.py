"""The log of a rule, as its script leaves it: each case is a process of its own."""

import subprocess
import sys

from glimmer.logs import last_lines

SCRIPT = """
import logging.config, sys
from glimmer.errors import DataError
from glimmer.logs import get_logger, setup
setup(sys.argv[1])
logger = get_logger("glimmer.case")
logger.info("before")
logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})  # as vLLM's import
logger.info("after")
raise DataError("file.jsonl: found a comma")
"""


def test_the_log_goes_on_where_a_library_configures_logging_anew(tmp_path):
    log = tmp_path / "logs" / "rule.log"
    for _ in range(2):  # the second run's log replaces the first's
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(log)], capture_output=True, text=True, timeout=60
        )
        text = log.read_text(encoding="utf-8")
        assert ran.returncode == 1
        assert ran.stderr.splitlines()[-1] == "DataError: file.jsonl: found a comma"
        assert "Traceback" not in ran.stderr
        assert [text.count(word) for word in ("before", "after", "Traceback")] == [1, 1, 1]


def test_an_errors_reason_is_not_hidden_by_the_frames_below_it(tmp_path):
    log = tmp_path / "log"
    frames = "".join(f"frame #{i}: python3() [0x{i:x}]\n" for i in range(40))
    log.write_text("a\n" * 20 + "AcceleratorError: CUDA error\n\n" + frames)
    told = last_lines(log, 3).splitlines()
    assert told == ["a", "a", "AcceleratorError: CUDA error"]
