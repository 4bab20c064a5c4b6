"""The words for rights: what a rule can give and what a call can need."""

from typing import Literal

Access = Literal["read", "write", "execute", "none"]
Need = Literal["read", "write", "execute"]
