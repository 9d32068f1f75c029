"""Search modes, one a file: each is a function from problem to plan under a name."""

from autoshard.search.greedy import bfs as _bfs  # these register their modes
from autoshard.search.modes import auto as _auto
from autoshard.search.modes import batch as _batch
from autoshard.search.modes import communication as _communication
from autoshard.search.modes import default as _default
from autoshard.search.modes import dynamic_programming as _dynamic_programming
from autoshard.search.modes import factor as _factor
from autoshard.search.modes import optimal as _optimal
from autoshard.search.modes import recursive as _recursive

del _auto, _batch, _bfs, _communication, _default, _dynamic_programming, _factor, _optimal, _recursive
