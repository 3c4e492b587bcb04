"""A socket between a client and the server that cuts the connection at a chosen moment."""

import contextlib
import socket
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self


class Cutter:
    """Passes bytes on in both directions until `cut_at` names words of a client: then that connection ends, once."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._temporary = tempfile.TemporaryDirectory(prefix="aalis-cut-")
        self.folder = Path(self._temporary.name)
        self._words: bytes | None = None
        self._arrives = False
        self.cuts = 0

    def __enter__(self) -> Self:
        self.accept()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        self._temporary.cleanup()

    def accept(self) -> None:
        """Take connections."""
        self._listening = socket.socket(socket.AF_UNIX)
        (self.folder / self._server.name).unlink(missing_ok=True)
        self._listening.bind(str(self.folder / self._server.name))
        self._listening.listen()
        threading.Thread(target=self._run, args=(self._listening,), daemon=True).start()

    def refuse(self) -> None:
        """Take no new connections."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def cut_at(self, words: bytes, arrives: bool) -> None:
        """Cut the next connection whose client says `words`; `arrives`: the server still gets them."""
        self._arrives, self._words = arrives, words

    def _run(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()
                threading.Thread(target=self._to_client, args=(client, server), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._words is not None and self._words in data:
                    self._words = None
                    self.cuts += 1
                    client.shutdown(socket.SHUT_RDWR)
                    if self._arrives:
                        server.sendall(data)
                        server.recv(65536)  # the server's answer: it is done, and nobody hears it
                    break
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
