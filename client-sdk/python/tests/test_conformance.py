"""The scenarios that all SDKs run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conformance import FOLDER, Runner

SCENARIOS = sorted(FOLDER.glob("*.json"))


def test_there_are_scenarios() -> None:
    assert SCENARIOS, f"there are no scenarios in {FOLDER}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
async def test_scenario(path: Path, folder: Path) -> None:
    await Runner(json.loads(path.read_text()), folder).run()
