"""Proves that ``aiozerocopy[all]`` installs what it says, and that this is enough.

Every requirement is installed in a version that fits, and every module can be imported.
"""

import importlib
import pkgutil
from importlib import metadata

from packaging.requirements import Requirement

import aiozerocopy
from aiozerocopy._core import extras

wanted = [Requirement(line) for line in extras.requirements("all")]
assert len(wanted) > 5, wanted
for requirement in wanted:
    if requirement.marker is None or requirement.marker.evaluate():
        version = metadata.version(requirement.name)
        assert requirement.specifier.contains(version, prereleases=True), requirement

modules = [
    module.name
    for module in pkgutil.walk_packages(aiozerocopy.__path__, "aiozerocopy.")
    if not module.name.endswith(".__main__")
]
for name in modules:
    importlib.import_module(name)
print(f"{len(wanted)} packages are there, {len(modules)} modules can be imported")
