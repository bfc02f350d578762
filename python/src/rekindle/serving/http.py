"""HTTP/1.1 as the gateway speaks it: requests one after the other on connections that stay."""

from __future__ import annotations

import asyncio

import h11

from rekindle.serving.dispatch import Dispatch, Reply

# Of a request's head; the gateway lets no larger one through.
HEAD = 1 << 17
ENDED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)


class Connection(asyncio.Protocol):
    def __init__(self, dispatch: Dispatch) -> None:
        self.dispatch = dispatch
        self.state = h11.Connection(h11.SERVER, HEAD)
        self.request: h11.Request | None = None
        self.body = bytearray()
        self.answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.state.receive_data(data)
        self.go_on()

    def eof_received(self) -> None:
        self.state.receive_data(b"")
        self.go_on()

    def connection_lost(self, _error: Exception | None) -> None:
        """Whoever asked has gone."""
        if self.answering:
            self.answering.cancel()

    def go_on(self) -> None:
        """Takes what has come, up to a whole request; the next one waits for its answer."""
        while not self.answering:
            try:
                event = self.state.next_event()
            except h11.RemoteProtocolError:
                return self.transport.close()
            if isinstance(event, h11.Request):
                self.request, self.body = event, bytearray()
                if self.state.they_are_waiting_for_100_continue:
                    self.send(h11.InformationalResponse(status_code=100, headers=[]))
            elif isinstance(event, h11.Data):
                self.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self.answering = asyncio.ensure_future(self.answer())
            else:
                if isinstance(event, h11.ConnectionClosed):
                    self.transport.close()
                return None
        return None

    async def answer(self) -> None:
        assert self.request is not None
        method, path = self.request.method.decode(), self.request.target.decode()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.request.headers]
        reply = await self.dispatch.answer(method, path.partition("?")[0], self.body, headers)
        self.reply(reply, method != "HEAD")
        self.answering, self.body = None, bytearray()
        if self.state.our_state is h11.DONE and self.state.their_state is h11.DONE:
            self.state.start_next_cycle()
            self.go_on()
        elif self.state.our_state in ENDED:
            self.transport.close()

    def reply(self, reply: Reply, has_body: bool) -> None:
        """In one write, of pieces that are not put together."""
        head = self.state.send(h11.Response(status_code=reply.status, headers=reply.headers))
        pieces = [head or b""]
        for piece in reply.pieces if has_body else ():
            pieces += self.state.send_with_data_passthrough(h11.Data(data=piece)) or []  # type: ignore[arg-type]
        self.state.send(h11.EndOfMessage())
        self.transport.writelines(pieces)

    def send(self, event: h11.Event) -> None:
        data = self.state.send(event)
        if data:
            self.transport.write(data)


async def listen(dispatch: Dispatch, host: str, port: int) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(lambda: Connection(dispatch), host, port, backlog=1024)
