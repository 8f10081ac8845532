"""Forks while its threads change files, as a script does whose data loader starts beside its logger."""

from __future__ import annotations

import os
import threading
from pathlib import Path

FOLDERS = 150
ending, end = os.pipe()


def write(thread: int) -> None:
    for number in range(FOLDERS):
        folder = Path(f"{thread}/{number}")
        folder.mkdir(parents=True)
        (folder / "file").touch()
        folder.rename(f"{thread}/done{number}")


threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
children = []
while any(thread.is_alive() for thread in threads):
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ending, 1)
        os._exit(0)
    children.append(child)
for thread in threads:
    thread.join()
os.close(end)
for child in children:
    os.waitpid(child, 0)
print(sorted(len(os.listdir(str(number))) for number in range(4)))  # noqa: PTH208
