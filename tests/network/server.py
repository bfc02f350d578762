"""A small HTTP server on asyncio, as a service is: each answer is how many requests came before it. `server.py [PORT [within]]`: with a
connection to itself besides."""

import asyncio
import sys

count = 0


async def serve(reader, writer):
    global count
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            body = str(count).encode()
            count += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    if "within" in sys.argv:
        within = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        server.kept = await asyncio.open_connection(*within.sockets[0].getsockname())
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
