"""The copy at Weights & Biases, written offline: its own files, no network."""

import struct

import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from glimmer.errors import GlimmerError
from glimmer.training.metrics import MetricsFile


def records(path):
    """Records of a run file: LevelDB's log format (one block of 32 KiB is enough here) behind a
    header of seven bytes."""
    data, at = path.read_bytes(), 7
    assert len(data) < 32768
    while at < len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)
        assert kind == 1, "a whole record"
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[at + 7 : at + 7 + length])
        yield record
        at += 7 + length


def rows(folder):
    """(step, reward) of every step in the run files of a folder, the runs' ids, and by which
    metric the others are drawn."""
    found, ids, axes = [], set(), set()
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for record in records(path):
            if record.HasField("run"):
                ids.add(record.run.run_id)
            if record.HasField("metric") and record.metric.step_metric:
                axes.add((record.metric.glob_name, record.metric.step_metric))
            if record.HasField("history"):
                values = {i.key or i.nested_key[0]: i.value_json for i in record.history.item}
                found.append((int(values["step"]), float(values["reward"])))
    return found, ids, axes


def test_every_step_is_there_under_one_run_also_after_a_resume(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "s" * 40)
    settings = {"wandb_project": "search-r1", "learning_rate": 1e-6}
    for done, steps in ((0, (1, 2)), (1, (2, 3))):  # killed in step 3, checkpoint of step 1
        metrics = MetricsFile(
            tmp_path / "metrics.jsonl", tmp_path / "board", steps_done=done, settings=settings
        )
        for step in steps:
            metrics.add({"step": step, "time": 0.0, "reward": step / 4})
        metrics.close()
    # W&B's own process closes the file after finish() has returned; its end is waited for, as at
    # the end of a real run.
    wandb.teardown()
    found, ids, axes = rows(tmp_path)
    assert found == [(1, 0.25), (2, 0.5), (2, 0.5), (3, 0.75)]
    assert axes == {("*", "step")}, "under steps of its own W&B drops those made again"
    assert ids == {(tmp_path / "wandb_id").read_text().strip()}
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert not [p for p in written if b"s" * 40 in p.read_bytes()], "the key is nowhere"


def test_without_a_key_the_error_names_the_ways_out(tmp_path, monkeypatch):
    def refuse(**_):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(GlimmerError, match=r"wandb_project: p, .*WANDB_API_KEY.*offline.*null"):
        MetricsFile(
            tmp_path / "metrics.jsonl",
            tmp_path / "board",
            steps_done=0,
            settings={"wandb_project": "p"},
        )
