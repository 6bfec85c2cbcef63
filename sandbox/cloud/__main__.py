"""The process of the cloud: ``python -m sandbox.cloud STATE``, started inside the sandbox by its first process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path

from sandbox.cloud.admin import Admin
from sandbox.cloud.world import World
from sandbox.settings import Paths, Settings


async def main(state: Path) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    world = World(Settings.load(Paths(state).settings))
    await world.open()
    stepping = asyncio.create_task(world.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stepping.cancel)
    async with await Admin(world).serve():
        with contextlib.suppress(asyncio.CancelledError):
            await stepping
    await world.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
