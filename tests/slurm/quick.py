"""Snakemake, which asks Slurm every two seconds: the executor's pauses grow by 10 s each time."""

import asyncio
import sys

from snakemake.cli import main
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor


async def two_seconds(self):
    await asyncio.sleep(2)


if __name__ == "__main__":
    RemoteExecutor.sleep = two_seconds
    sys.exit(main())
