// A server in Node.js on llama.cpp, as the package node-llama-cpp has it.
//
//     node benches/servers/llama.mjs MODEL.gguf PORT
//
// GET /health: 200 once the model is there. POST /v1/completions {prompt, max_tokens}: {text}, of the likeliest tokens. Four requests
// are computed at once, in one batch; others wait.
import http from "node:http";
import {createRequire} from "node:module";
import {text} from "node:stream/consumers";
import {pathToFileURL} from "node:url";

// The package of the directory in which the command is given.
const installed = createRequire(`${process.cwd()}/`).resolve("node-llama-cpp");
const {getLlama, LlamaCompletion} = await import(pathToFileURL(installed));
const [file, port] = process.argv.slice(2);
const AT_ONCE = 4;

const llama = await getLlama({build: "never"});
const model = await llama.loadModel({modelPath: file});
const context = await model.createContext({contextSize: 2048, sequences: AT_ONCE});
console.log(`on ${llama.gpu || "processors"}`);

const free = Array.from({length: AT_ONCE}, () => context.getSequence());
const waiting = [];

async function complete({prompt, max_tokens}) {
    const sequence = free.pop() ?? await new Promise((take) => waiting.push(take));
    const completion = new LlamaCompletion({contextSequence: sequence, autoDisposeSequence: false});
    try {
        await sequence.clearHistory();
        return await completion.generateCompletion(prompt, {maxTokens: max_tokens, temperature: 0});
    } finally {
        completion.dispose();
        const take = waiting.shift();
        if (take)
            take(sequence);
        else
            free.push(sequence);
    }
}

async function answer(request, response) {
    if (request.method === "GET" && request.url === "/health")
        return response.end("ok");
    if (request.method !== "POST" || request.url !== "/v1/completions")
        return response.writeHead(404).end();
    const body = JSON.parse(await text(request));
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify({text: await complete(body)}));
}

http.createServer((request, response) => {
    answer(request, response).catch((error) => response.writeHead(500).end(`${error}\n`));
}).listen(Number(port), "127.0.0.1");
