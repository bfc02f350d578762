// An HTTP server that counts, with code that is compiled while it runs, WebAssembly, a worker, and a directory that is watched.
// counter.mjs PORT.
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import {Worker} from "node:worker_threads";

const ADD = Uint8Array.from(
    "0061736d0100000001070160027f7f017f030201000707010361646400000a09010700200020016a0b".match(/../g), (byte) => parseInt(byte, 16));
const watched = fs.mkdtempSync(path.join(os.tmpdir(), "watched-"));
let count = 0, seen = 0;

fs.watch(watched, () => { seen++; });
new Worker("setInterval(() => { let sum = 0; for (let n = 0; n < 1e5; n++) sum += n % 7; }, 5)", {eval: true});
http.createServer(async (request, response) => {
    const {instance} = await WebAssembly.instantiate(ADD);
    const compiled = new Function("n", `let sum = 0; for (let k = 0; k < 2000; k++) sum += (k * n) % ${7 + count % 50}; return sum;`);
    compiled(count);
    count = instance.exports.add(count, 1);
    const before = seen;
    fs.writeFileSync(path.join(watched, "file"), String(count));
    while (seen === before)
        await new Promise((go) => setTimeout(go, 1));
    response.end(String(count));
}).listen(Number(process.argv[2]), "127.0.0.1");
