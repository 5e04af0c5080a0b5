"""Under torchrun each process gets the same command line: the first one reads it, and tells the others what it says.

So Hydra composes once, and the run has one folder, though its name holds the time.
"""

import json
import os
from pathlib import Path

from torch.distributed import TCPStore

from minillm import distributed
from minillm.config import Config
from minillm.problems import validate

KEY = "minillm/run"


def store() -> TCPStore:
    """The one that torchrun serves, and in which the ranks meet."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=False, timeout=distributed.PATIENCE)


def tell(config: Config, folder: Path) -> None:
    store().set(KEY, json.dumps({"config": config.model_dump(mode="json"), "folder": str(folder)}))


def told() -> tuple[Config, Path]:
    """What the first process has made of the command line, once it has; if it fails, torchrun ends this one."""
    run = json.loads(store().get(KEY))
    return validate(run["config"]), Path(run["folder"])
