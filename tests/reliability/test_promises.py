"""docs/reliability.md: beside every promise stands a test, and every test that stands there exists."""

import re

from minillm.compose import ROOT

FOLDERS = [ROOT, ROOT / "tests" / "reliability", ROOT / "tests" / "distributed"]


def test_every_promise_has_a_test_that_exists() -> None:
    """Named as `file`, `file::test_beginning_...`, or `::test_beginning_...` in the file before it."""
    text = (ROOT / "docs" / "reliability.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    promises = [row for row in rows if row != ("promise", "test")]
    assert len(promises) > 30
    for promise, tests in promises:
        names = re.findall("`([^`]+)`", tests)
        assert names, promise
        code = ""
        for name in names:
            path, _, beginning = name.partition("::")
            if path:
                (file,) = (folder / path for folder in FOLDERS if (folder / path).is_file())
                code = file.read_text()
            assert f"\ndef {beginning.removesuffix('...') or 'test_'}" in code, f"{name}, for: {promise}"
