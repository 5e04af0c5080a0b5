"""Failures that are the machine's: what has run out, in a sentence with what to do about it."""

import errno

import torch
import torch.distributed as dist

from minillm.config import Config
from minillm.errors import OtherRankError, UserError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def explained(error: BaseException, config: Config, last_good: str) -> UserError | None:
    """The sentence for a failure that is none of the program's; None for the others.

    last_good: a clause that names the last good checkpoint.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return UserError(
            f"out of GPU memory ({str(error).splitlines()[0]}): lower batch.micro={config.batch.micro} and raise "
            f"batch.accumulate={config.batch.accumulate} to match, lower "
            f"data.sequence_length={config.data.sequence_length}, or use a smaller model; {last_good}"
        )
    if isinstance(error, OSError) and error.errno in FULL:
        return UserError(f"{error.filename or 'a file'} cannot be written ({error.strerror}): make room; {last_good}")
    if isinstance(error, OSError) and (error.filename or error.errno == errno.EIO):  # not allowed, gone, broken, ...
        return UserError(f"{error.filename or 'a file'} cannot be read or written ({error.strerror}); {last_good}")
    if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
        return OtherRankError(
            f"another rank does not answer any more ({str(error).splitlines()[0]}): it has ended, or hangs; {last_good}"
        )
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):
        return UserError(
            f"a process that reads the data has died ({str(error).splitlines()[0]}), perhaps for want of memory: "
            f"lower data.num_workers={config.data.num_workers}, 0 reads in the main process; {last_good}"
        )
    return None
