"""A WebSocket server at port 8000: gives back what it is told, message by message; prints a line when it listens.

`close CODE REASON` has it close the connection with these; Clients have to offer the subprotocol `chat`.
"""

import asyncio

from websockets.asyncio.server import serve


async def echo(connection):
    async for message in connection:
        if isinstance(message, str) and message.startswith("close "):
            _, code, reason = message.split(" ", 2)
            await connection.close(int(code), reason)
        else:
            await connection.send(message)


async def main():
    async with serve(echo, "127.0.0.1", 8000, subprotocols=["chat"], max_size=None) as server:
        print("listens", flush=True)
        await server.serve_forever()


asyncio.run(main())
