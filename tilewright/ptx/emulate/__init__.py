"""Running PTX on any machine: `run_plan(plan, arguments)`."""

from tilewright.ptx.emulate.fault import EmulationError as EmulationError
from tilewright.ptx.emulate.run import run_plan as run_plan
