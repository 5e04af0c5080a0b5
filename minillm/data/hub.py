"""Documents in a data set of the Hugging Face hub (or in a folder that is laid out like one)."""

import ssl
import urllib.error
import urllib.request
from pathlib import Path

import datasets
import huggingface_hub
import pyarrow as pa

from minillm.config import DataConfig
from minillm.errors import UserError

PROBE_SECONDS = 3.0


def load_hub_documents(data: DataConfig) -> datasets.Dataset:
    """The data set's text column, named `text`; downloaded once, then read from the cache of `datasets`.

    Raises:
        UserError: neither network nor cache, no such data set, subset or split, or a column that is missing or no text.
    """
    name, column = str(data.dataset), data.text_column
    offline = not Path(name).is_dir() and (huggingface_hub.constants.HF_HUB_OFFLINE or not hub_answers())
    if offline:
        _go_offline()
    try:
        dataset = datasets.load_dataset(name, data.subset, split=data.split)
    except (OSError, ValueError, pa.ArrowException, datasets.exceptions.DatasetsError) as error:
        if offline:
            raise UserError(
                f"data.dataset={name} (data.subset={data.subset}) is not in the local cache and the Hugging Face hub "
                "is out of reach; connect once to download it, or use data=text data.files=..."
            ) from error
        reason = " ".join(str(error.__cause__ or error).split())  # the cause of "an error occurred"
        raise UserError(
            f"data.dataset={name} data.subset={data.subset} data.split={data.split} cannot be loaded: {reason}"
        ) from error
    if column not in dataset.column_names:
        raise UserError(
            f"data.dataset={name} has no column {column!r} but {dataset.column_names}; set data.text_column"
        )
    if getattr(dataset.features[column], "dtype", None) not in ("string", "large_string"):
        raise UserError(
            f"data.dataset={name}: column {column!r} is {dataset.features[column]}, not text; set data.text_column"
        )
    dataset = dataset.select_columns(column)
    return dataset if column == "text" else dataset.rename_column(column, "text")


def hub_answers() -> bool:
    """Whether a request reaches the hub (through a proxy, where one is set): the hub's own client retries for 23 s."""
    request = urllib.request.Request(huggingface_hub.constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:
        return True  # whatever the answer is, it is one
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # the hub's client brings certificates of its own
    except OSError:
        return False
    return True


def _go_offline() -> None:
    """What HF_HUB_OFFLINE=1 does, in a process that has imported the libraries already."""
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    datasets.config.HF_HUB_OFFLINE = True
