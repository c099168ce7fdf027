"""A pytest plugin: run the tests on the `_core` found in the folder HEADSTART_CORE, e.g. the sanitizer build (CMakeLists.txt)."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import headstart

_file = next(Path(os.environ["HEADSTART_CORE"]).glob("_core.*.so"))
_spec = importlib.util.spec_from_file_location("headstart._core", _file)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules["headstart._core"] = _module
_spec.loader.exec_module(_module)
headstart._core = _module
