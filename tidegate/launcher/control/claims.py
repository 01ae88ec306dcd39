"""Which actuator may act on a job: the one with the newest claim.

A claim is the fence or an order for a size, with a token and an owner. It is written only if no newer one is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.launcher.control.files import Control, SizeOrder, Token


class Claims:
    """The claims on one job."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def newest(self) -> tuple[Token, str] | None:
        """Return the token and owner of the fence or of the order for a size, whichever is newer."""
        order = self._control.size_order()
        claims = (self._control.fence(), None if order is None else (order.token, order.owner))
        return max((claim for claim in claims if claim is not None), default=None)

    def next_token(self, epoch: int) -> Token:
        """Return a token of an epoch that is newer than all its runs and claims; nothing reserves it yet."""
        claim = self.newest()
        known = [*self._control.runs(), *([claim[0]] if claim is not None else [])]
        return Token(epoch, max((token.run for token in known if token.epoch == epoch), default=0) + 1)

    def raise_fence(self, token: Token, owner: str) -> bool:
        """Allow `token` and forbid every older run; return False if there is a newer claim or another owner's."""
        return self._claim("fence", token, owner, {})

    def order_size(self, order: SizeOrder, command_id: str) -> bool:
        """Order another size; return False if there is a newer claim on the job, or the same of another owner."""
        what = {
            "for_epoch": order.for_run.epoch,
            "for_run": order.for_run.run,
            "parallelism": order.parallelism,
            "command_id": command_id,
        }
        return self._claim("size", order.token, order.owner, what)

    def _claim(self, name: str, token: Token, owner: str, what: Mapping[str, Any]) -> bool:
        """Write a claim if all others are older; return whether it is there, now or already before."""
        files, data = self._control.files, {**token._asdict(), "owner": owner, **what}
        # first: the write must not undo a claim that comes after the look at the newest one
        seen = {"fence": files.text("fence", newest=True), "size": files.text("size")}
        newest = self.newest()
        if newest is None or newest[0] < token:
            return files.swap(seen, name, data)
        written = files.read(name)
        return newest == (token, owner) and written is not None and written.data == data
