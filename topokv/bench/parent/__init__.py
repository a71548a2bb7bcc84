"""The parent's side of a run: it starts workers, puts together what they found and keeps the file.

It loads no torch.
"""

from topokv.bench.parent.run import Job, Step, measure

__all__ = ["Job", "Step", "measure"]
