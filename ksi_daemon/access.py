"""The access levels: what a rule can grant and what a call can need."""

from typing import Literal

Access = Literal["read", "write", "execute", "none"]
Need = Literal["read", "write", "execute"]
