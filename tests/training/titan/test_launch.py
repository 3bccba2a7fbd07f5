import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from glimmer.errors import ConfigError, GlimmerError
from glimmer.processes import session_members
from glimmer.training.titan import launch
from glimmer.training.titan.export import UnreadableSave
from glimmer.training.titan.launch import interpreter, run_process

ROOT = Path(__file__).parents[3]


def child(tmp_path, body):
    path = tmp_path / "child.py"
    path.write_text(textwrap.dedent(body))
    return [sys.executable, str(path), str(tmp_path)]


def limits(tmp_path, **changed):
    given = {"log": tmp_path / "log", "alive": tmp_path / "metrics.jsonl"}
    return given | {"setup_timeout_s": 30, "step_timeout_s": 30} | changed


def test_output_goes_to_the_log_and_the_status_comes_back(tmp_path):
    command = child(tmp_path, "print('a line'); raise SystemExit(3)")
    assert run_process(command, **limits(tmp_path)) == 3
    assert "a line" in (tmp_path / "log").read_text()


def test_steps_are_shown_and_other_libraries_lines_are_not(tmp_path, caplog):
    caplog.set_level("INFO")
    lines = "12:00:00 INFO progress: [actor=<root>] train: 2% 1/50\\n12:00:00 INFO root: loaded"
    run_process(child(tmp_path, f"print('{lines}')"), **limits(tmp_path))
    assert caplog.messages == ["train: 2% 1/50"]
    assert "root: loaded" in (tmp_path / "log").read_text()


GRANDCHILD = """
    import os, subprocess, sys, time
    code = "import os, time; os.setpgid(0, 0); time.sleep(600)"
    grandchild = subprocess.Popen([sys.executable, "-c", code])
    open(sys.argv[1] + "/pid", "w").write(str(grandchild.pid))
"""


def gone(pid):
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_processes_of_the_session_end_with_it_whatever_their_group(tmp_path):
    run_process(child(tmp_path, GRANDCHILD), **limits(tmp_path))
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_hang_is_an_error_that_names_the_setting(tmp_path):
    command = child(tmp_path, GRANDCHILD + "    time.sleep(600)\n")
    with pytest.raises(GlimmerError, match=r"no training step .*titan\.setup_timeout_s"):
        run_process(command, **limits(tmp_path, setup_timeout_s=1, step_timeout_s=1))
    assert gone(int((tmp_path / "pid").read_text()))


def test_steps_that_go_on_are_no_hang(tmp_path):
    body = """
        import sys, time
        for step in range(8):
            with open(sys.argv[1] + "/metrics.jsonl", "a") as handle:
                handle.write("{}\\n")
            time.sleep(0.5)
    """
    given = limits(tmp_path, setup_timeout_s=1, step_timeout_s=2)
    assert run_process(child(tmp_path, body), **given) == 0


def test_an_engine_that_is_done_and_does_not_end_is_ended(tmp_path, monkeypatch):
    """Its training is whole: what hangs is the end of its actors or of W&B."""
    monkeypatch.setattr(launch, "CLOSING_S", 0.2)
    body = GRANDCHILD + "    open(sys.argv[1] + '/done', 'w')\n    time.sleep(600)\n"
    given = limits(tmp_path, setup_timeout_s=60) | {"done": tmp_path / "done"}
    assert run_process(child(tmp_path, body), **given) == 0
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_damaged_last_save_is_made_again(tmp_path):
    """Without `trained.json` the next start goes on from the checkpoint before it."""
    work = tmp_path / "work"
    saved = work / "checkpoint" / "step-4"
    saved.mkdir(parents=True)
    (saved / "model-00001-of-00001.safetensors").write_bytes(b"cut")
    (work / "trained.json").write_text('{"steps": 4}')
    job = SimpleNamespace(work=str(work), checkpoint=str(tmp_path), training={"steps": 4})
    with pytest.raises(
        UnreadableSave, match="cannot be read.*run again to make it from the checkpoint before"
    ):
        launch.train(job, out=tmp_path, log=tmp_path / "log")
    assert not (work / "trained.json").exists()


def test_the_engine_ends_when_the_workflow_is_killed(tmp_path):
    body = """
        import os, sys, time
        from glimmer.processes import end_with_parent
        end_with_parent()
        open(sys.argv[1] + "/pid", "w").write(str(os.getpid()))
        time.sleep(600)
    """
    command = child(tmp_path, body)
    outer = f"""
        import sys
        from pathlib import Path
        from glimmer.training.titan.launch import run_process
        here = Path({str(tmp_path)!r})
        run_process({command!r}, log=here / "log", alive=here / "none",
                    setup_timeout_s=60, step_timeout_s=60)
    """
    path = tmp_path / "outer.py"
    path.write_text(textwrap.dedent(outer))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(path)], env=env)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert gone(int((tmp_path / "pid").read_text()))


def test_members_of_a_session_are_found():
    assert os.getpid() in session_members(os.getsid(0))


def test_a_missing_interpreter_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"titan\.python: .*nowhere"):
        interpreter({"python": str(tmp_path / "nowhere")})
    assert interpreter({"python": None}) == sys.executable


def test_a_role_gets_its_share_of_the_gpus_that_are_visible(monkeypatch):
    from glimmer.training.titan.__main__ import visible_gpus

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (visible_gpus(0, 6), visible_gpus(6, 2)) == ("0,1,2,3,4,5", "6,7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    assert (visible_gpus(0, 2), visible_gpus(2, 1)) == ("2,5", "7")
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES: found '2,5,7'.* 4 GPUs"):
        visible_gpus(2, 2)
