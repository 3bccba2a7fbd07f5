"""`python -m glimmer.training.titan JOB.json`: one training run in the GPU stack's interpreter."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

from glimmer.errors import ConfigError, GlimmerError
from glimmer.files import write_json
from glimmer.logs import get_logger, setup
from glimmer.processes import end_with_parent
from glimmer.training.job import Job
from glimmer.training.titan import CHECKPOINT_FOLDER, compat
from glimmer.training.titan.keep import BEST

logger = get_logger("glimmer.training.titan")
DONE = "trained.json"
FAILURE = "failure.json"


def discard_unfinished(work: Path) -> None:
    """Remove saves that a kill left without their metadata, and a last save of a run that did not
    end: TitanRL would try to resume from them. And copies of the best that a kill cut."""
    for folder in (work / CHECKPOINT_FOLDER).glob("step-*"):
        if not (folder / ".metadata").is_file():
            logger.warning("%s was not finished; removing it", folder)
            shutil.rmtree(folder)
    for folder in (work / BEST).glob(".step-*.part"):  # its links hold files that were purged
        shutil.rmtree(folder)
    shutil.rmtree(work / "sync", ignore_errors=True)


def visible_gpus(start: int, count: int) -> str:
    """CUDA_VISIBLE_DEVICES of a role: `count` of the GPUs that this process may see.

    Raises:
        ConfigError: CUDA_VISIBLE_DEVICES is set and names too few.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = given.split(",") if given is not None else [str(i) for i in range(start + count)]
    if len(seen) < start + count:
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES: found {given!r}, expected at least {start + count} GPUs "
            "(titan.trainer_fsdp x titan.trainer_tp + titan.generator_tp, or 1 with "
            "titan.share_gpu). Name more, or lower the degrees."
        )
    return ",".join(seen[start : start + count])


def spawn(job: Job):
    """(trainer mesh, generator meshes) on this host: on GPUs of their own, or both on GPU 0."""
    from monarch.actor import default_bootstrap_cmd, this_host

    from glimmer.training.titan.actors import READY, SETUP_TIMEOUT

    titan = job.titan
    trainers = titan["trainer_fsdp"] * titan["trainer_tp"]
    generators = titan["generator_tp"]
    first = 0 if titan["share_gpu"] else trainers
    common = {SETUP_TIMEOUT: str(titan["setup_timeout_s"])}
    if titan["share_gpu"]:
        ready = Path(job.work).resolve() / "trainer.ready"
        ready.unlink(missing_ok=True)
        common[READY] = str(ready)

    def mesh(start: int, count: int):
        env = {**common, "CUDA_VISIBLE_DEVICES": visible_gpus(start, count)}
        return this_host().spawn_procs(
            per_host={"gpus": count},
            bootstrap=compat.bootstrap,
            bootstrap_command=default_bootstrap_cmd().with_env(env),
        )

    return mesh(0, trainers), [mesh(first, generators)]


def build(job: Job):
    """The controller of a job, ready for `setup_async`."""
    import torchtitan.experiments.rl.controller as titan

    from glimmer.training.titan.actors import Generator, Trainer
    from glimmer.training.titan.controller import SearchController
    from glimmer.training.titan.recipe import controller_config

    # The controller spawns the classes that its module names; there is no setting for them.
    titan.PolicyTrainer, titan.VLLMGenerator = Trainer, Generator
    controller = controller_config(job, config_class=SearchController.Config).build()
    controller.attach(job)
    return controller


async def run(job: Job) -> None:
    """Train; leaves TitanRL's last save in the work folder, or the reason in `failure.json`."""
    controller = build(job)
    try:
        trainer, generators = spawn(job)
        await controller.setup_async(trainer_mesh=trainer, generator_meshes=generators)
        logger.info("trainer and generator are up, weights are of step %d", controller.start_step)
        await controller.run()
        last = controller.rows.rows[-1]["step"] if controller.rows.rows else 0
        if last != job.training["steps"]:
            raise GlimmerError(
                f"training ended after step {last} of {job.training['steps']}: the loss was not "
                "finite. Lower training.learning_rate; run again to resume from the last "
                "checkpoint."
            )
        write_json(Path(job.work) / DONE, {"steps": last})
    except BaseException as error:
        tell(Path(job.work), error)
        # With an actor dead, taking the others down can wait without end; the process that started
        # this one ends the whole session.
        os._exit(1)
    await controller.close()


def tell(work: Path, error: BaseException) -> None:
    """Write the first failure of the run to `failure.json`."""
    if (work / FAILURE).exists():
        return
    known = isinstance(error, GlimmerError)
    if not known:
        traceback.print_exception(error)
    reason = {"kind": type(error).__name__, "message": str(error) or repr(error), "known": known}
    write_json(work / FAILURE, reason)


def main(argv: list[str]) -> int:
    """Run the job; 0 if it ended, else the reason stands in `failure.json`."""
    job = Job.read(Path(argv[0]))
    work = Path(job.work)
    setup()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        compat.apply()
        discard_unfinished(work)
        asyncio.run(run(job))
    except BaseException as error:
        if not (work / DONE).exists():
            tell(work, error)
    return 0 if (work / DONE).exists() else 1


if __name__ == "__main__":
    end_with_parent()
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # A plain exit aborts after all is closed ("FATAL: exception not rethrown") in Monarch 0.7.0.
    os._exit(code)
