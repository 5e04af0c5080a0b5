"""The package's list of its files is whole."""

from pathlib import Path

import minillm


def test_the_list_names_every_file_and_folder_once_and_no_other() -> None:
    assert minillm.__file__ and minillm.__doc__
    lines = minillm.__doc__.partition("Where things are:\n\n")[2].splitlines()
    named = [name for line in lines for name in line[20:].split()]
    folder = Path(minillm.__file__).parent
    files = [path.stem for path in folder.glob("*.py") if path.name != "__init__.py"]
    folders = [f"{path.parent.name}/" for path in folder.glob("*/__init__.py")]
    assert sorted(named) == sorted(files + folders)
