import shutil

from glimmer.training.titan.keep import keep_best


def save(work, step, *, whole=True):
    folder = work / "checkpoint" / f"step-{step}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(f"weights of {step}")
    if whole:
        (folder / ".metadata").touch()
    return folder


def kept(work):
    return sorted(p.name for p in (work / "best").iterdir())


def test_nothing_to_keep_before_the_first_checkpoint(tmp_path):
    assert keep_best(tmp_path, 3) is None


def test_the_best_outlives_the_purge_of_its_original(tmp_path):
    folder = save(tmp_path, 5)
    save(tmp_path, 10)
    found = keep_best(tmp_path, 7)
    shutil.rmtree(folder)
    assert found == tmp_path / "best" / "step-5"
    assert (found / "weights").read_text() == "weights of 5"
    assert keep_best(tmp_path, 7) == found


def test_a_better_step_takes_its_place(tmp_path):
    save(tmp_path, 5)
    keep_best(tmp_path, 6)
    save(tmp_path, 10)
    assert keep_best(tmp_path, 12) == tmp_path / "best" / "step-10"
    assert kept(tmp_path) == ["step-10"]


def test_an_unfinished_checkpoint_is_not_the_best(tmp_path):
    save(tmp_path, 5)
    save(tmp_path, 10, whole=False)
    assert keep_best(tmp_path, 12).name == "step-5"


def test_no_second_copy_on_disk(tmp_path):
    folder = save(tmp_path, 5)
    found = keep_best(tmp_path, 5)
    assert (found / "weights").stat().st_ino == (folder / "weights").stat().st_ino
