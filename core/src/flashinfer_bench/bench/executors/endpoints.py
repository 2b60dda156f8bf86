"""The connections between the judge and a candidate that is about to start."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

# The system may grant less. Fewer, larger steps make large tensors faster.
_BUFFER_BYTES = 2**22


@dataclass
class Endpoints:
    """Both ends of channel, log pipe and leash; none of them is inherited by other processes.

    Attributes
    ----------
    channel, leash : socket.socket
        The judge's ends.
    log : int
        The judge's end, for reading.
    their_channel, their_leash : socket.socket
        The other ends.
    their_log : int
        The other end, for writing.
    """

    channel: socket.socket
    leash: socket.socket
    log: int
    their_channel: socket.socket
    their_leash: socket.socket
    their_log: int

    @classmethod
    def open(cls, leash_type: socket.SocketKind) -> Endpoints:
        """Connect everything.

        Parameters
        ----------
        leash_type : socket.SocketKind
            Type of the leash.

        Raises
        ------
        OSError
            If no descriptors are left.
        """
        channel, their_channel = socket.socketpair()
        for sock in (channel, their_channel):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        leash, their_leash = socket.socketpair(socket.AF_UNIX, leash_type)
        log, their_log = os.pipe()
        return cls(channel, leash, log, their_channel, their_leash, their_log)

    def close_theirs(self) -> None:
        """Close the ends that now are in another process."""
        self.their_channel.close()
        self.their_leash.close()
        os.close(self.their_log)

    def close_ours(self) -> None:
        """Close the judge's ends."""
        self.channel.close()
        self.leash.close()
        os.close(self.log)
